"""One training iteration as tasks: what computes where, what is sent, what waits for what.

The steps of `csrc/sim/iteration/iteration_steps.h`, which the flow level simulates too, with
nothing folded and for simulators to which the paths of transfers are not known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from torch_topoopt import _core
from torch_topoopt.search.lowering import degrees_of, lower_job, lower_placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy


class IterationStep(NamedTuple):
    """`amount` is seconds (compute on server `source`; delay) or bytes (flow to `target`;
    all_reduce among `servers`, ascending).

    A server computes one step at a time, of those that are ready the one of least `priority`, then
    the first. `after` are indices of steps; nothing waits for an all_reduce.
    """

    kind: Literal["compute", "delay", "flow", "all_reduce"]
    source: int
    target: int
    amount: float
    priority: int
    servers: tuple[int, ...]
    after: tuple[int, ...]


@dataclass
class IterationTask:
    """As IterationStep, with the AllReduces made flows; `after` are indices of tasks."""

    kind: Literal["compute", "delay", "flow"]
    source: int
    target: int
    amount: float
    priority: int
    after: list[int]


_Task = TypeVar("_Task", bound=IterationTask)


# kind, source, target, amount, priority, links, after: as FlowProgram.of_tasks takes it
ProgramTask = tuple[str, int, int, float, int, Sequence[int], list[int]]


def check_iterations(iterations: int) -> None:
    """Raises ValueError for a run of less than one iteration."""
    if iterations < 1:
        raise ValueError(f"iterations: {iterations} is not at least 1")


def iteration_steps(
    op_graph: OpGraph, cluster: Cluster, strategy: Strategy, micro_batches: int = 1
) -> list[IterationStep]:
    """The steps of one iteration; raises ValueError for an unknown accelerator."""
    job = lower_job(op_graph, cluster, degrees_of([strategy]), micro_batches=micro_batches)
    steps = _core.iteration_steps(job, [lower_placement(placement) for placement in strategy])
    return [
        IterationStep(kind, source, target, amount, priority, tuple(servers), tuple(after))
        for kind, source, target, amount, priority, servers, after in steps
    ]


def iteration_tasks(
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    rings: Callable[[tuple[int, ...]], Sequence[tuple[Sequence[int], float]]],
    latency_s: Callable[[int, int], float],
    micro_batches: int = 1,
) -> list[IterationTask]:
    """The tasks of one iteration.

    `rings` gives the orders and shares of a group of servers, `latency_s` the latency of the path
    from one server to another. A ring AllReduce is one transfer per hop, each of 2 (k - 1) / k of
    the ring's bytes, all at once, and after the last of them the rest of the ring's latency
    (`ring_delay_s`). No step waits for an AllReduce.
    """
    tasks: list[IterationTask] = []
    late: list[tuple[IterationTask, range]] = []  # what ends an AllReduce, and its transfers
    task_of: list[int] = []  # per step
    for kind, source, target, amount, priority, servers, after in iteration_steps(
        op_graph, cluster, strategy, micro_batches
    ):
        task_of.append(len(tasks))
        if kind != "all_reduce":
            tasks.append(IterationTask(kind, source, target, amount, priority, list(after)))
            continue
        k = len(servers)
        for order, share in rings(servers):
            hops = list(zip(order, (*order[1:], order[0]), strict=True))
            size_bytes = 2 * (k - 1) / k * share * amount
            first = len(tasks)
            tasks += [IterationTask("flow", a, b, size_bytes, 0, list(after)) for a, b in hops]
            late_s = ring_delay_s([latency_s(a, b) for a, b in hops])
            late.append((IterationTask("delay", 0, 0, late_s, 0, []), range(first, len(tasks))))
    for task in tasks:
        task.after = [task_of[step] for step in task.after]
    for task, flows in late:
        task.after = [*flows]
    return [*tasks, *(task for task, _ in late)]


def ring_delay_s(hop_s: Sequence[float]) -> float:
    """Seconds from the arrival of a ring's transfers, all sent at once, to the end of an AllReduce.

    Data crosses 2 (k - 1) hops of a ring of k one after the other, each with its latency `hop_s`;
    the slowest start leaves out the two cheapest neighbouring hops of two rounds. The transfers
    have taken the longest hop's latency already.
    """
    skipped_s = min(a + b for a, b in zip(hop_s, (*hop_s[1:], hop_s[0]), strict=True))
    return max(0.0, 2 * sum(hop_s) - skipped_s - max(hop_s))


def repeated_tasks(
    once: Sequence[_Task], iterations: int, links: Callable[[_Task], Sequence[int]]
) -> tuple[list[ProgramTask], list[int]]:
    """Iterations one after another as the tasks of a program, and the numbers of their ends.

    An iteration ends with a delay of no time that waits for all of it. `links` gives those that a
    flow crosses, anew in every iteration.
    """
    tasks: list[ProgramTask] = []
    ends: list[int] = []
    for _ in range(iterations):
        first = len(tasks)
        waited_for: set[int] = set()
        for task in once:
            way = links(task) if task.kind == "flow" else ()
            after = [first + before for before in task.after]
            waited_for.update(after)
            fields = (task.kind, task.source, task.target, task.amount, task.priority)
            tasks.append((*fields, way, after or ends[-1:]))
        last = [i for i in range(first, len(tasks)) if i not in waited_for]
        ends.append(len(tasks))
        tasks.append(("delay", 0, 0, 0.0, 0, (), last))
    return tasks, ends
