"""Any graph of compute tasks and flows at the flow level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class SimLink:
    """A directed link of a simulation."""

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


@dataclass(frozen=True)
class TaskTimes:
    """Of a simulation: its end, the end of each task, busy seconds per device, bytes per link."""

    end_s: float
    finish_s: tuple[float, ...]
    device_busy_s: tuple[float, ...]
    link_bytes: tuple[float, ...]


def simulate_tasks(
    links: Sequence[SimLink],
    tasks: Sequence[ComputeTask | FlowTask],
    *,
    devices_at_once: float = math.inf,
) -> TaskTimes:
    """Simulates `tasks` from time 0; devices are numbered from 0.

    While more than `devices_at_once` devices compute, they share that evenly.

    Raises ValueError for a rate, size or time that is negative, NaN or infinite (rates and sizes:
    also zero), an unknown link or task, a cycle in the dependencies, or `devices_at_once` not
    above 0.
    """
    for i, link in enumerate(links):
        if not (math.isfinite(link.latency_s) and link.latency_s >= 0):
            raise ValueError(f"links[{i}].latency_s: {link.latency_s} is not at least 0 and finite")
    rows: list[tuple[str, int, float, float, int, Sequence[int], Sequence[int]]] = []
    devices = 1
    for i, task in enumerate(tasks):
        if isinstance(task, ComputeTask):
            devices = max(devices, task.device + 1)
            rows.append(("compute", task.device, task.seconds, 0.0, task.priority, (), task.after))
            continue
        for link_index in task.links:
            if not 0 <= link_index < len(links):
                raise ValueError(
                    f"tasks[{i}].links: link {link_index} is not in 0..{len(links) - 1}"
                )
        latency_s = sum(links[link_index].latency_s for link_index in task.links)
        rows.append(("flow", -1, task.size_bytes, latency_s, 0, task.links, task.after))
    end_s, finish_s, busy_s, link_bytes = _core.simulate_tasks(
        [link.bytes_per_s for link in links], devices, rows, devices_at_once=devices_at_once
    )
    return TaskTimes(end_s, tuple(finish_s), tuple(busy_s), tuple(link_bytes))
