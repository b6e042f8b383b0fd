"""Slow, plain simulations of what the C++ simulator does, written independently of it."""

from __future__ import annotations

import heapq
import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING

from exact_max_min import exact_rates

from torch_topoopt.search.accelerators import accelerator, operator_seconds
from torch_topoopt.sim import ComputeTask, FlowTask, SimLink, simulate_tasks

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operand, OpGraph
    from torch_topoopt.plan import Cluster, Network, Ring
    from torch_topoopt.search.strategies import Strategy

Task = ComputeTask | FlowTask


def reference_finish(links: list[SimLink], tasks: list[Task]) -> list[float]:
    """When each task ends; exact rates, all flows solved again at every event."""
    run = _Run(links, tasks)
    while run.step():
        pass
    return run.finish


class _Run:
    def __init__(self, links: list[SimLink], tasks: list[Task]) -> None:
        self.links = links
        self.tasks = tasks
        self.waiting = [len(task.after) for task in tasks]
        self.finish = [math.nan] * len(tasks)
        self.timers: list[tuple[float, int]] = []
        self.ready: dict[int, list[tuple[int, int]]] = {}
        self.busy: set[int] = set()
        self.sending: dict[int, float] = {}
        self.now = 0.0
        for i in range(len(tasks)):
            if self.waiting[i] == 0:
                self.start(i)

    def start(self, i: int) -> None:
        task = self.tasks[i]
        if isinstance(task, ComputeTask):
            heapq.heappush(self.ready.setdefault(task.device, []), (task.priority, i))
        else:
            self.sending[i] = float(task.size_bytes)

    def end(self, i: int) -> None:
        self.finish[i] = self.now
        for j, task in enumerate(self.tasks):
            self.waiting[j] -= task.after.count(i)
            if i in task.after and self.waiting[j] == 0:
                self.start(j)

    def rates(self) -> dict[int, float]:
        order = sorted(self.sending)
        paths = [[(link, 1.0) for link in self.tasks[i].links] for i in order]
        capacity = [link.bytes_per_s for link in self.links]
        return dict(
            zip(order, map(float, exact_rates(capacity, paths, [1] * len(order))), strict=True)
        )

    def dispatch(self) -> None:
        for device in sorted(self.ready):
            if device not in self.busy and self.ready[device]:
                _, i = heapq.heappop(self.ready[device])
                self.busy.add(device)
                heapq.heappush(self.timers, (self.now + self.tasks[i].seconds, i))

    def step(self) -> bool:
        """Moves on to the next event; False if there is none."""
        self.dispatch()
        rate = self.rates()
        ends = {i: self.now + self.sending[i] / rate[i] for i in rate}
        then = min([*ends.values(), *(time for time, _ in self.timers[:1])], default=math.inf)
        if then == math.inf:
            return False
        for i in rate:
            self.sending[i] -= rate[i] * (then - self.now)
        self.now = then
        close = then * (1 + 1e-12)
        while self.timers and self.timers[0][0] <= close:
            _, i = heapq.heappop(self.timers)
            task = self.tasks[i]
            if isinstance(task, ComputeTask):
                self.busy.discard(task.device)
            self.end(i)
        for i, end in ends.items():
            if end <= close:
                del self.sending[i]
                latency_s = sum(self.links[link].latency_s for link in self.tasks[i].links)
                heapq.heappush(self.timers, (then + latency_s, i))
        return True


class IterationReference:
    """An iteration without folding: every shard on its own server, one flow per pair and ring.

    The network must have one route per pair, no parallel links and no latency.
    """

    def __init__(
        self, op_graph: OpGraph, cluster: Cluster, network: Network, strategy: Strategy
    ) -> None:
        self.index = {(link.source, link.target): i for i, link in enumerate(network.links)}
        self.links = [SimLink(cluster.link_bytes_per_s) for _ in network.links]
        self.routes = {pair: r[0].servers for pair, r in network.routes_by_pair().items()}
        self.tasks: list[tuple[Task, list[int]]] = []
        self.forward: dict[tuple[int, int], int] = {}
        self.backward: dict[tuple[int, int], int] = {}
        self.sets = [placement.servers for placement in strategy]
        groups = {tuple(sorted(group.servers)): group for group in network.groups}
        device = accelerator(cluster.accelerator)
        last = 2 * len(op_graph.operators)
        for i, op in enumerate(op_graph.operators):
            forward_s, backward_s = operator_seconds(device, op, len(self.sets[i]))
            for s in self.sets[i]:
                self.forward[i, s] = self.add(ComputeTask(s, forward_s, priority=i))
                self.backward[i, s] = self.add(ComputeTask(s, backward_s, priority=last - i))
                self.tasks[self.backward[i, s]][1].append(self.forward[i, s])
        for i, op in enumerate(op_graph.operators):
            for operand in op.operands:
                self.exchange(i, operand)
            if op.parameter_gradient_bytes and len(self.sets[i]) > 1:
                for ring in groups[self.sets[i]].rings:
                    self.all_reduce(i, ring, op.parameter_gradient_bytes)

    def add(self, task: Task) -> int:
        self.tasks.append((task, []))
        return len(self.tasks) - 1

    def hops(self, source: int, target: int) -> tuple[int, ...]:
        return tuple(self.index[hop] for hop in itertools.pairwise(self.routes[source, target]))

    def move(self, source: int, target: int, size: float, before: int, after: int) -> None:
        if size and source != target:
            flow = self.add(FlowTask(self.hops(source, target), size))
            self.tasks[flow][1].append(before)
            before = flow
        self.tasks[after][1].append(before)

    def exchange(self, i: int, operand: Operand) -> None:
        """Activations and gradients by the definition: every pair of shards, shared samples."""
        p = operand.producer
        a, b = len(self.sets[p]), len(self.sets[i])
        for (x, s), (y, t) in itertools.product(enumerate(self.sets[p]), enumerate(self.sets[i])):
            end = min(Fraction(x + 1, a), Fraction(y + 1, b))
            share = float(end - max(Fraction(x, a), Fraction(y, b)))
            if share <= 0:
                continue
            self.move(s, t, share * operand.size_bytes, self.forward[p, s], self.forward[i, t])
            if operand.gradient_bytes:
                size = share * operand.gradient_bytes
                self.move(t, s, size, self.backward[i, t], self.backward[p, s])

    def all_reduce(self, i: int, ring: Ring, size_bytes: int) -> None:
        k = len(ring.servers)
        path: tuple[int, ...] = ()
        for source, target in itertools.pairwise((*ring.servers, ring.servers[0])):
            path += self.hops(source, target)
        flow = self.add(FlowTask(path, 2 * (k - 1) / k * ring.share * size_bytes))
        self.tasks[flow][1].extend(self.backward[i, s] for s in self.sets[i])

    def seconds(self) -> float:
        """When the last task ends."""
        tasks = [
            ComputeTask(t.device, t.seconds, tuple(after), t.priority)
            if isinstance(t, ComputeTask)
            else FlowTask(t.links, t.size_bytes, tuple(after))
            for t, after in self.tasks
        ]
        return simulate_tasks(self.links, tasks).end_s
