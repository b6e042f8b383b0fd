"""The generic flow API: flows with explicit paths, sizes and dependencies, at any level.

A flow starts when all flows that it depends on are delivered. `run_flows` takes Python lists,
`run_flow_file` the text format of docs/planning/simulators.md; both give a `FlowsResult`.
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
    """`size_bytes` from `source` to `target` over the links of index `path`, in this order, as soon
    as the flows of index `after` are delivered."""

    source: int
    target: int
    size_bytes: float
    path: tuple[int, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkChange:
    """From `time_s` on, the link of index `link` has another rate; 0: it has failed, and the flows
    on it wait."""

    time_s: float
    link: int
    bits_per_s: float


@dataclass(frozen=True)
class FlowsResult:
    """The results of a run. Arrays are per task (where there are only flows: per flow), per
    link and per host, in the order in which they were given.

    `completion_s` is the time of the last delivery, or the time reached if the run was ended early
    (`complete` is False; times of what did not happen are infinite). `cpu_seconds` is the run
    alone, without reading; `peak_memory_mb` is that of the whole process. `packet_hops` is 0 at
    flow level. `device_busy_s` is what hosts have computed.
    `round_ends_s`: per loop of the program, when each of its rounds ended; tasks that are repeated
    have the times of their last round.
    `packet_counts`, at packet level, are per link: packets (of data), wire_bytes, dropped, trimmed,
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


# Level -> what runs a program at it; further keywords are the level's own options.
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

    Nodes 0..hosts-1 are hosts, the others switches; by default there are as many nodes as the links
    name, and all are hosts. `changes` change rates while it runs. `options` are those of
    `run_program`.

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
    """Runs a program that was read or built already; raises ValueError, see `run_flows`.

    `until_s` ends the run early, and so does `keep_going(now_s, finished_flows)`, which is called
    now and then, by returning False. `options` are those of the level.
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
    """Writes the text format; what is read back is the same to the last bit."""
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
