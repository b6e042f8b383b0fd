"""One training iteration as tasks: what computes where, what is sent, what waits for what.

The same iteration as `csrc/sim/iteration.cc` builds, in Python and with nothing folded, for
simulators to which the paths of transfers are not known beforehand. A ring AllReduce is one
transfer per hop, each of 2 (k - 1) / k of the ring's bytes, all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.search.accelerators import accelerator, operator_seconds
from torch_topoopt.search.traffic import overlaps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy


@dataclass
class IterationTask:
    """`amount` is seconds (compute on server `source`; delay) or bytes (flow to `target`).

    A server computes one task at a time, of those that are ready the one of least `priority`, then
    the first. `after` are indices of tasks.
    """

    kind: Literal["compute", "delay", "flow"]
    source: int
    target: int
    amount: float
    priority: int
    after: list[int]


def iteration_tasks(
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    rings: Callable[[tuple[int, ...]], Sequence[tuple[Sequence[int], float]]],
) -> list[IterationTask]:
    """The tasks of one iteration; `rings` gives the orders and shares of a group of servers."""
    return _Builder(op_graph, cluster, strategy, rings).build()


class _Builder:
    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        strategy: Strategy,
        rings: Callable[[tuple[int, ...]], Sequence[tuple[Sequence[int], float]]],
    ) -> None:
        self._operators = op_graph.operators
        self._sets = [placement.servers for placement in strategy]
        self._cluster = cluster
        self._device = accelerator(cluster.accelerator)
        self._rings = rings
        self._tasks: list[IterationTask] = []
        self._forward: list[list[int]] = []
        self._backward: list[list[int]] = []

    def build(self) -> list[IterationTask]:
        count = len(self._operators)
        for op in range(count):
            self._forward.append(self._compute(op, 0, op))
            for operand in self._operators[op].operands:
                self._transfer(
                    self._forward[operand.producer],
                    self._forward[op],
                    self._sets[operand.producer],
                    self._sets[op],
                    operand.size_bytes,
                )
        self._backward = [self._compute(op, 1, 2 * count - op) for op in range(count)]
        gradient_comes = [False] * count
        for op in reversed(range(count)):
            for operand in self._operators[op].operands:
                if operand.gradient_bytes:
                    gradient_comes[operand.producer] = True
                    self._transfer(
                        self._backward[op],
                        self._backward[operand.producer],
                        self._sets[op],
                        self._sets[operand.producer],
                        operand.gradient_bytes,
                    )
        for op in range(count):
            if not gradient_comes[op]:
                for before, after in zip(self._forward[op], self._backward[op], strict=True):
                    self._tasks[after].after.append(before)
        for op in reversed(range(count)):
            self._all_reduce(op)
        return self._tasks

    def _add(self, kind: Literal["compute", "delay", "flow"], *fields: float) -> int:
        source, target, amount, priority = fields
        self._tasks.append(IterationTask(kind, int(source), int(target), amount, int(priority), []))
        return len(self._tasks) - 1

    def _compute(self, op: int, backward: int, priority: int) -> list[int]:
        parts = self._cluster.accelerators_per_server if self._operators[op].splittable else 1
        servers = self._sets[op]
        seconds = operator_seconds(self._device, self._operators[op], len(servers) * parts)
        return [self._add("compute", s, s, seconds[backward], priority) for s in servers]

    def _transfer(
        self,
        before: Sequence[int],
        after: Sequence[int],
        senders: tuple[int, ...],
        receivers: tuple[int, ...],
        size_bytes: float,
    ) -> None:
        """Sends to each shard of the receivers the samples that it needs."""
        a, b = len(senders), len(receivers)
        for i, j, parts in overlaps(a, b):
            waits_for = before[i]
            if senders[i] != receivers[j] and size_bytes:
                moved = parts / (a * b) * size_bytes
                waits_for = self._add("flow", senders[i], receivers[j], moved, 0)
                self._tasks[waits_for].after.append(before[i])
            self._tasks[after[j]].after.append(waits_for)

    def _all_reduce(self, op: int) -> None:
        size_bytes = self._operators[op].parameter_gradient_bytes
        servers = self._sets[op]
        per_server = self._cluster.accelerators_per_server
        local_s = size_bytes * 2 * (per_server - 1) / per_server / self._device.peer_bytes_per_s
        if not size_bytes or (len(servers) == 1 and local_s == 0):
            return
        ready = self._add("delay", 0, 0, local_s, 0)
        self._tasks[ready].after.extend(self._backward[op])
        if len(servers) == 1:
            return
        k = len(servers)
        for order, share in self._rings(servers):
            for source, target in zip(order, (*order[1:], order[0]), strict=True):
                hop = self._add("flow", source, target, 2 * (k - 1) / k * share * size_bytes, 0)
                self._tasks[hop].after.append(ready)
