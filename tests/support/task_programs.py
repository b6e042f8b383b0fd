"""Any graph of compute tasks and flows over any links as a flow program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.sim import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDE_BITS_PER_S = 1e30  # of what joins the links of a path, so that nothing waits there


@dataclass(frozen=True)
class SimLink:
    """A directed link of a simulation, between nodes of its own."""

    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class ComputeTask:
    """`seconds` on `device`, after the tasks of index `after`; low `priority` goes first."""

    device: int
    seconds: float
    after: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True)
class FlowTask:
    """`size_bytes` over the links of index `links`, after the tasks of index `after`."""

    links: tuple[int, ...]
    size_bytes: float
    after: tuple[int, ...] = ()


Task = ComputeTask | FlowTask


@dataclass(frozen=True)
class TaskTimes:
    """Of a simulation: its end, the end of each task, busy seconds per device, bytes per link."""

    end_s: float
    finish_s: tuple[float, ...]
    device_busy_s: tuple[float, ...]
    link_bytes: tuple[float, ...]


def task_program(
    links: Sequence[SimLink], tasks: Sequence[Task], *, devices_at_once: float = math.inf
) -> _core.FlowProgram:
    """Link i goes from node 2 i to 2 i + 1; wide links join what follows each other on a path."""
    nodes = max(2 * len(links), devices_of(tasks))
    program = _core.FlowProgram(nodes, nodes)
    program.set_hosts_at_once(devices_at_once)
    for i, link in enumerate(links):
        program.add_link(2 * i, 2 * i + 1, 8 * link.bytes_per_s, 1e9 * link.latency_s)
    joints: dict[tuple[int, int], int] = {}
    for task in tasks:
        if isinstance(task, ComputeTask):
            program.add_compute(task.device, task.seconds, task.priority)
            continue
        path = [task.links[0]]
        for link in task.links[1:]:
            ends = (2 * path[-1] + 1, 2 * link)
            if ends not in joints:
                joints[ends] = program.add_link(*ends, _WIDE_BITS_PER_S, 0.0)
            path += [joints[ends], link]
        program.add_flow(2 * path[0], 2 * path[-1] + 1, task.size_bytes, path)
    for i, task in enumerate(tasks):
        for before in task.after:
            program.add_dependency(before, i)
    return program


def devices_of(tasks: Sequence[Task]) -> int:
    """Their number, at least one."""
    return max([1, *(task.device + 1 for task in tasks if isinstance(task, ComputeTask))])


def simulate_tasks(
    links: Sequence[SimLink],
    tasks: Sequence[Task],
    *,
    devices_at_once: float = math.inf,
    fold: bool | None = False,
) -> TaskTimes:
    """At flow level; `fold`: whether what behaves alike is simulated once (None: where it pays)."""
    program = task_program(links, tasks, devices_at_once=devices_at_once)
    if fold is False:
        result = run_program(program)
        end_s, finish_s = result.completion_s, result.finish_s.tolist()
        busy_s, link_bytes = result.device_busy_s.tolist(), result.link_bytes.tolist()
    else:
        end_s, finish_s, busy_s, link_bytes = _core.run_folded(program, fold)
    return TaskTimes(
        end_s, tuple(finish_s), tuple(busy_s[: devices_of(tasks)]), tuple(link_bytes[: len(links)])
    )
