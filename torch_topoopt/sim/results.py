"""Results of a run of flows as files: CSV per flow and per link, and a trace for Perfetto."""

from __future__ import annotations

import csv
import json
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from torch_topoopt import _core
    from torch_topoopt.sim.flow_names import FlowName
    from torch_topoopt.sim.flows import FlowsResult

FLOW_COLUMNS = ("flow", "source", "target", "size_bytes", "start_s", "finish_s")
LINK_COLUMNS = ("link", "source", "target", "bits_per_s", "size_bytes", "utilisation")
_MICROSECONDS = 1e6


def write_flow_csv(file: TextIO, program: _core.FlowProgram, result: FlowsResult) -> None:
    """One row per flow, FLOW_COLUMNS; times of events that did not happen are empty."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(FLOW_COLUMNS)
    for task in program.flow_tasks:
        flow = program.flow(task)
        times = (float(result.start_s[task]), float(result.finish_s[task]))
        shown = [repr(time) if math.isfinite(time) else "" for time in times]
        rows.writerow((flow.id, flow.source, flow.target, _number(flow.size_bytes), *shown))


def write_link_csv(file: TextIO, program: _core.FlowProgram, result: FlowsResult) -> None:
    """One row per link, LINK_COLUMNS. `utilisation` is the fraction of the link's capacity until
    the end, at its initial rate."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(LINK_COLUMNS)
    for link, size_bytes in zip(program.links, result.link_bytes.tolist(), strict=True):
        possible = link.bits_per_s / 8 * result.completion_s
        rows.writerow(
            (
                *(link.id, link.source, link.target),
                *(_number(link.bits_per_s), _number(size_bytes)),
                f"{size_bytes / possible if possible else 0.0:.6f}",
            )
        )


def write_trace(
    file: TextIO,
    program: _core.FlowProgram,
    result: FlowsResult,
    names: Mapping[int, FlowName] = MappingProxyType({}),
) -> None:
    """The trace-event JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    Every source node is a process; its flows are in lanes without overlap. An unfinished flow lasts
    until the end. `names`, by number of task, name the flows; the others are named by their ends
    and number.
    """
    events: list[str] = []
    lanes: dict[int, list[float]] = {}  # per source: when each lane is free again
    order = sorted(program.flow_tasks, key=lambda task: (float(result.start_s[task]), task))
    for task in order:
        start_s = float(result.start_s[task])
        if not math.isfinite(start_s):
            continue
        flow = program.flow(task)
        source, target = flow.source, flow.target
        end_s = min(float(result.finish_s[task]), result.completion_s)
        ends = lanes.setdefault(source, [])
        lane = next((i for i, end in enumerate(ends) if end <= start_s), len(ends))
        ends[lane : lane + 1] = [end_s]
        arguments: dict[str, Any] = {
            "flow": flow.id,
            "size_bytes": flow.size_bytes,
            "hops": len(flow.links),
        }
        text = f"flow {flow.id}: {source} -> {target}"
        if name := names.get(task):
            text = name.text(source, target)
            arguments |= {"operators": name.operators, "iteration": name.iteration}
            if name.ring:
                arguments |= {"ring": name.ring, "steps": name.steps}
        event = {
            "name": text,
            "ph": "X",
            "pid": source,
            "tid": lane,
            "ts": start_s * _MICROSECONDS,
            "dur": (end_s - start_s) * _MICROSECONDS,
            "args": arguments,
        }
        events.append(json.dumps(event))
    for source in sorted(lanes):
        process = {
            "name": "process_name",
            "ph": "M",
            "pid": source,
            "args": {"name": f"host {source}"},
        }
        events.append(json.dumps(process))
    file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
    file.write(",\n".join(events))
    file.write("\n]}\n")


def _number(value: float) -> str:
    """Whole numbers without a fraction."""
    return str(int(value)) if value.is_integer() else repr(value)
