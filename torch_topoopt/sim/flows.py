"""The generic flow API: flows with explicit paths, sizes and dependencies, at any level.

A flow starts when all its dependencies are delivered. `run_flows` accepts Python lists,
`run_flow_file` the text format of docs/planning/simulators.md; both return a `FlowsResult`.
"""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt import _core
from torch_topoopt.plan import limits
from torch_topoopt.plan.file_kinds import FLOW_FILE, wrong_kind
from torch_topoopt.sim.packet import run_packet_level

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FlowLink:
    """A directed link between two nodes, in bits per second and nanoseconds."""

    source: int
    target: int
    bits_per_s: float
    latency_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Flow:
    """`size_bytes` from `source` to `target` over the links `path` (indices, in order), started
    when the flows `after` (indices) are delivered."""

    source: int
    target: int
    size_bytes: float
    path: tuple[int, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A new rate of link `link` (an index) from `time_s` on; 0: it is down, and its flows wait."""

    time_s: float
    link: int
    bits_per_s: float


@dataclass(frozen=True)
class FlowsResult:
    """The results of a run. Arrays are per task (a flow is a task), per link and per host, in input
    order.

    - `completion_s`: the last delivery, or the time reached if the run was ended early. Then
      `complete` is False, and times of events that did not happen are infinite.
    - `cpu_seconds`: the run without reading; `peak_memory_mb`: the whole process.
    - `device_busy_s`: computing time per host. `packet_hops`: 0 at flow level.
    - `round_ends_s`: the end of each round, per loop; repeated tasks have the times of their last.
    - `packet_counts`, at packet level, per link: packets (of data), wire_bytes, dropped, trimmed,
      marked, pauses, most_queued_bytes.
    """

    JSON_FIELDS: ClassVar = (
        "completion_s", "complete", "flows", "events", "packet_hops", "cpu_seconds",
        "peak_memory_mb",
    )  # fmt: skip

    completion_s: float
    complete: bool
    flows: int
    events: int
    packet_hops: int
    cpu_seconds: float
    peak_memory_mb: float
    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    link_bytes: NDArray[np.float64]
    device_busy_s: NDArray[np.float64]
    round_ends_s: tuple[NDArray[np.float64], ...] = ()
    packet_counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)


def _run_flow_level(
    program: _core.FlowProgram,
    until_s: float,
    keep_going: Callable[[float, int], bool] | None,
    *,
    control: _core.CircuitControl | None = None,
) -> dict[str, Any]:
    return _core.run_flow_level(program, until_s, keep_going, control)


# level -> function that runs a program; further keywords are the level's own options
LEVELS: dict[str, Callable[..., dict[str, Any]]] = {
    "flow": _run_flow_level,
    "packet": run_packet_level,
}


def run_flows(
    links: Sequence[FlowLink],
    flows: Sequence[Flow],
    *,
    level: str = "flow",
    nodes: int | None = None,
    hosts: int | None = None,
    changes: Sequence[LinkChange] = (),
    **options: Any,
) -> FlowsResult:
    """Simulates `flows` over `links` from time 0.

    Nodes 0..hosts-1 are hosts, the others switches; by default all nodes that links name are hosts.
    `changes` change rates during the run. `options`: see `run_program`.

    Raises ValueError, naming link or flow, for: an unknown node, link or flow; a rate or size that
    is zero, negative, NaN or infinite; a path that does not lead from source to target; a cycle in
    the dependencies; a flow that waits for ever on a failed link; an unknown level.
    """
    if nodes is None:
        nodes = 1 + max((max(link.source, link.target) for link in links), default=0)
    limits.check_items(nodes, "nodes", nodes, "nodes")
    program = _core.FlowProgram(nodes, nodes if hosts is None else hosts)
    for link in links:
        program.add_link(link.source, link.target, link.bits_per_s, link.latency_ns)
    for flow in flows:
        program.add_flow(flow.source, flow.target, flow.size_bytes, flow.path)
    for i, flow in enumerate(flows):
        for before in flow.after:
            if not 0 <= before < len(flows):
                last = len(flows) - 1
                raise ValueError(f"flows[{i}].after: flow {before} is not in 0..{last}")
            program.add_dependency(before, i)
    for change in changes:
        program.add_change(change.time_s, change.link, change.bits_per_s)
    return run_program(program, level=level, **options)


def read_flows(path: str) -> _core.FlowProgram:
    """Reads a file in the text format; raises ValueError with its name and the line number."""
    try:
        program = _core.FlowProgram.read(path)
    except ValueError as error:
        if problem := wrong_kind(path, FLOW_FILE):
            raise ValueError(f"{path}: {problem}") from None
        raise error
    try:
        limits.check_items(program.nodes, "nodes", program.nodes, "nodes")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return program


def run_flow_file(path: str, **options: Any) -> FlowsResult:
    """`run_program` for a file in the text format; raises ValueError, see `run_flows`."""
    return run_program(read_flows(path), **options)


def run_program(
    program: _core.FlowProgram,
    *,
    level: str = "flow",
    until_s: float = math.inf,
    keep_going: Callable[[float, int], bool] | None = None,
    **options: Any,
) -> FlowsResult:
    """Runs a program; raises ValueError, see `run_flows`.

    The run ends early at `until_s`, or when `keep_going(now_s, finished_flows)`, which is called
    periodically, returns False. `options` are those of the level.
    """
    if level not in LEVELS:
        raise ValueError(f"level: {level!r} is not one of {', '.join(LEVELS)}")
    if not until_s > 0:
        raise ValueError(f"until_s: {until_s} is not above 0")
    result = LEVELS[level](program, until_s, keep_going, **options)
    peak_memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return FlowsResult(peak_memory_mb=peak_memory_mb, **result)


def write_flows(
    file: TextIO, links: Sequence[FlowLink], flows: Sequence[Flow], *, nodes: int, hosts: int
) -> None:
    """Writes the text format without loss: reading it returns equal values."""
    file.write(f"nodes {nodes} hosts {hosts}\n")
    for i, link in enumerate(links):
        file.write(
            f"link {i} {link.source} {link.target} {link.bits_per_s!r} {link.latency_ns!r}\n"
        )
    for i, flow in enumerate(flows):
        path = " ".join(map(str, (len(flow.path), *flow.path)))
        deps = " ".join(map(str, (len(flow.after), *flow.after)))
        file.write(
            f"flow {i} {flow.source} {flow.target} {flow.size_bytes!r} path {path} deps {deps}\n"
        )
