"""Predicted and measured iterations on one time axis.

The file is trace-event JSON ("Trace Event Format", the Chromium project) for ui.perfetto.dev and
chrome://tracing. A process is a server. Its threads are its computing, collectives, messages and
outgoing links, each predicted and measured. Arrows follow bytes from sender to receiver, and
counters show the rate of each link.
"""

from __future__ import annotations

import bisect
import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.units import counted
from torch_topoopt.sim.flows import run_program
from torch_topoopt.sim.plan_program import traced_plan_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from torch_topoopt import _core
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Link, Plan
    from torch_topoopt.sim.flows import FlowsResult
    from torch_topoopt.sim.iteration_program import IterationProgram
    from torch_topoopt.sim.layout_program import LayoutProgram
    from torch_topoopt.supervision.dumps import Dump, RecordedCall
    from torch_topoopt.supervision.recorded_timeline import RankTimeline

_PREDICTED, _MEASURED = "predicted", "measured"
_MESSAGES = ("send", "recv")
# threads of a server in their display order; links follow, and extra lanes for overlapping slices
# stay next to their thread
_ORDER = ("iterations", "compute", "collectives", "messages")
_LANES = 100
_INSIDE = 1e-3  # of a slice: an arrow that ends this long before its end is seen to be in it


@dataclass
class TraceFile:
    """Events as they are added; times in seconds from the first iteration's begin."""

    events: list[dict[str, Any]] = field(default_factory=list)
    _threads: dict[tuple[int, str], int] = field(default_factory=dict)
    _busy: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    _arrows: int = 0

    def slice(
        self, server: int, thread: str, name: str, begin_s: float, end_s: float, **arguments: Any
    ) -> tuple[int, int, float, float]:
        """A slice in the first lane of the thread that is free; returns where an arrow binds."""
        first = self._thread(server, thread)
        lanes = self._busy.setdefault((server, first), [])
        lane = next((i for i, end in enumerate(lanes) if end <= begin_s + 1e-12), len(lanes))
        lanes[lane : lane + 1] = [end_s]
        tid = first + min(lane, _LANES - 1)
        self.events.append(
            {
                "name": name,
                "ph": "X",
                "pid": server,
                "tid": tid,
                "ts": _microseconds(begin_s),
                "dur": _microseconds(end_s - begin_s),
                "args": arguments,
            }
        )
        return server, tid, begin_s, end_s

    def arrow(
        self,
        name: str,
        source: tuple[int, int, float, float],
        target: tuple[int, int, float, float],
    ) -> None:
        """From within one slice to within another: a flow event binds to the slice around it."""
        self._arrows += 1
        begin_s = source[2]
        end_s = max(begin_s, target[3] - _INSIDE * (target[3] - target[2]))
        for phase, (server, tid, *_), at_s in (("s", source, begin_s), ("f", target, end_s)):
            event = {"name": name, "cat": "flow", "ph": phase, "id": self._arrows, "pid": server}
            event |= {"tid": tid, "ts": _microseconds(at_s)}
            if phase == "f":
                event["bp"] = "e"  # the slice around it, not the next one
            self.events.append(event)

    def counter(self, server: int, name: str, at_s: float, gbps: float) -> None:
        counted = {"name": name, "ph": "C", "pid": server, "ts": _microseconds(at_s)}
        self.events.append(counted | {"args": {"Gb/s": round(gbps, 6)}})

    def write(self, file: TextIO) -> None:
        named = [
            {"name": "process_name", "ph": "M", "pid": server, "args": {"name": f"server {server}"}}
            for server in sorted({server for server, _ in self._threads})
        ]
        for (server, thread), tid in sorted(self._threads.items(), key=lambda item: item[1]):
            lanes = len(self._busy.get((server, tid), [])) or 1
            for lane in range(min(lanes, _LANES)):
                where = {"ph": "M", "pid": server, "tid": tid + lane}
                named.append(where | {"name": "thread_name", "args": {"name": thread}})
                order = {"sort_index": tid + lane}
                named.append(where | {"name": "thread_sort_index", "args": order})
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        file.write(",\n".join(json.dumps(event) for event in [*named, *self.events]))
        file.write("\n]}\n")

    def _thread(self, server: int, thread: str) -> int:
        key = (server, thread)
        if key not in self._threads:
            kind, _, of = thread.rpartition(", ")
            place = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
            if place == len(_ORDER):
                place += sum(s == server and t.startswith("link ") for s, t in self._threads)
            # a predicted thread lies above the same as measured; links of both kinds follow
            self._threads[key] = (2 * place + (of == _MEASURED)) * _LANES
        return self._threads[key]


def write_timeline(
    file: TextIO,
    graph: OpGraph | None,
    plan: Plan,
    recorded: Sequence[tuple[RankTimeline, Dump | None]] = (),
    iterations: int = 2,
) -> str:
    """Writes the trace and returns a line about it. Without `graph` or predicted times, it has only
    recorded iterations; without `recorded`, it has `iterations` predicted ones.

    Each predicted iteration begins with its measured one. Raises ValueError if there is neither.
    """
    trace, said = TraceFile(), []
    starts: list[float] = []
    if recorded:
        starts = _Measured(trace, recorded).add()
        said.append(f"{counted(len(starts), 'iteration')} measured")
    if graph is not None and plan.predicts_time:
        shown = max(1, len(starts) or iterations)
        _Predicted(trace, graph, plan).add(starts or None, shown)
        said.append(f"{counted(shown, 'iteration')} predicted")
    if not said:
        raise ValueError(
            "no timeline: none was recorded (`topoopt run --timeline FIRST:END`), and without a "
            "profiled model none can be predicted"
        )
    trace.write(file)
    return " and ".join(said)


def _microseconds(seconds: float) -> float:
    """Microseconds, rounded to the nanosecond."""
    return round(seconds * 1e6, 3)


def _link_text(link: Link) -> str:
    return f"link {link.source}.{link.source_port} -> {link.target}.{link.target_port}"


class _Predicted:
    """One iteration at flow level, repeated for each iteration."""

    def __init__(self, trace: TraceFile, graph: OpGraph, plan: Plan) -> None:
        self._trace, self._graph, self._plan = trace, graph, plan
        self._added: IterationProgram | LayoutProgram = traced_plan_program(graph, plan)
        self._program: _core.FlowProgram = self._added.program
        self._result: FlowsResult = run_program(self._program)

    def add(self, starts: Sequence[float] | None, count: int) -> None:
        length = self._result.completion_s
        for number in range(count):
            at = starts[number] if starts is not None else number * length
            self._trace.slice(
                *(0, f"iterations, {_PREDICTED}", f"iteration of {self._plan.model}"),
                *(at, at + length),
            )
            self._add_compute(at)
            self._add_flows(at)

    def _add_compute(self, at: float) -> None:
        servers = self._added.server_of_host
        for computation in self._program.compute_tasks:
            begin, end = self._times(computation.task)
            if not end > begin:
                continue
            name, batch = self._added.computed(computation.task, computation.priority)
            thread = f"compute, {_PREDICTED}"
            server = servers[computation.host]
            self._trace.slice(server, thread, name, at + begin, at + end, micro_batch=batch)

    def _add_flows(self, at: float) -> None:
        """A slice on every link of a flow's path, with an arrow from hop to hop and to where it
        arrives; the collective or message itself on its sender's and receiver's threads."""
        names, servers = self._added.names(), self._added.server_of_host
        links = self._plan.network.links
        loads: dict[int, list[tuple[float, float]]] = defaultdict(list)  # of links: (time, change)
        arrivals: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for task in self._program.flow_tasks:
            begin, end = self._times(task)
            flow = self._program.flow(task)
            if not end > begin:
                continue
            name = names[task]
            source, target = servers[flow.source], servers[flow.target]
            text = name.text(source, target)
            rate = flow.size_bytes * 8e-9 / (end - begin)
            hops = []
            for number in flow.links:
                if number >= len(links):  # inside a server
                    continue
                thread = f"{_link_text(links[number])}, {_PREDICTED}"
                span = (at + begin, at + end)
                size_bytes, gbps = round(flow.size_bytes), round(rate, 6)
                hops.append(
                    self._trace.slice(
                        links[number].source, thread, text, *span, size_bytes=size_bytes, gbps=gbps
                    )
                )
                loads[number] += [(begin, rate), (end, -rate)]
            for one, other in pairwise(hops):
                self._trace.arrow("relayed", one, other)
            if name.ring:
                listed = ", ".join(name.operators[:2])
                more = " ..." if len(name.operators) > 2 else ""
                for server in (source, target):
                    arrivals[f"{name.what} of {listed}{more}", server].append((begin, end))
            receipt = self._trace.slice(
                target, f"messages, {_PREDICTED}", f"receive {text}", at + begin, at + end
            )
            if hops:
                self._trace.arrow(text, hops[-1], receipt)
        for (what, server), spans in arrivals.items():
            begin, end = min(b for b, _ in spans), max(e for _, e in spans)
            thread = f"collectives, {_PREDICTED}"
            self._trace.slice(server, thread, what, at + begin, at + end, flows=len(spans))
        self._add_rates(at, loads)

    def _add_rates(self, at: float, loads: dict[int, list[tuple[float, float]]]) -> None:
        for number, changes in loads.items():
            link, rate = self._plan.network.links[number], 0.0
            moments: dict[float, float] = defaultdict(float)
            for moment, change in changes:
                moments[moment] += change
            for moment in sorted(moments):
                rate += moments[moment]
                name = f"{_link_text(link)}, {_PREDICTED}"
                self._trace.counter(link.source, name, at + moment, max(rate, 0.0))

    def _times(self, task: int) -> tuple[float, float]:
        begin, end = float(self._result.start_s[task]), float(self._result.finish_s[task])
        return (begin, end) if math.isfinite(begin) and math.isfinite(end) else (0.0, 0.0)


class _Measured:
    """The iterations recorded by all ranks."""

    def __init__(
        self, trace: TraceFile, recorded: Sequence[tuple[RankTimeline, Dump | None]]
    ) -> None:
        self._trace, self._recorded = trace, recorded
        self._zero_ns = min(timeline.ends_ns[0] for timeline, _ in recorded)
        self._until_ns = max(timeline.ends_ns[-1] for timeline, _ in recorded)
        self._server = {timeline.rank: timeline.server for timeline, _ in recorded}
        per_server: dict[int, int] = defaultdict(int)
        for server in self._server.values():
            per_server[server] += 1
        self._several = any(count > 1 for count in per_server.values())

    def add(self) -> list[float]:
        """Adds the events; returns the begin of each iteration on its first rank."""
        for timeline, _ in self._recorded:
            self._add_compute(timeline)
            self._add_rates(timeline)
        self._add_calls()
        count = min(len(timeline.ends_ns) - 1 for timeline, _ in self._recorded)
        return [
            min(self._at(timeline.ends_ns[i]) for timeline, _ in self._recorded)
            for i in range(count)
        ]

    def _at(self, time_ns: int) -> float:
        return (time_ns - self._zero_ns) * 1e-9

    def _thread(self, kind: str, rank: int) -> str:
        of_rank = f" of rank {rank}" if self._several else ""
        return f"{kind}{of_rank}, {_MEASURED}"

    def _add_compute(self, timeline: RankTimeline) -> None:
        server, rank = timeline.server, timeline.rank
        for number, (begin, end) in enumerate(pairwise(timeline.ends_ns), timeline.first):
            span = (self._at(begin), self._at(end))
            self._trace.slice(
                server, self._thread("iterations", rank), f"iteration {number}", *span, rank=rank
            )
            passes = [
                (b, e) for b, e in timeline.backward_ns if begin <= b and e <= end
            ]  # between them: forward, then the optimizer
            moments = [begin, *(moment for of in passes for moment in of), end]
            for i, (one, other) in enumerate(pairwise(moments)):
                last = i == len(moments) - 2
                name = "backward" if i % 2 else "optimizer" if last and passes else "forward"
                thread = self._thread("compute", rank)
                self._trace.slice(server, thread, name, self._at(one), self._at(other), rank=rank)

    def _add_rates(self, timeline: RankTimeline) -> None:
        for one, other in pairwise(timeline.samples):
            seconds = (other.time_ns - one.time_ns) * 1e-9
            if seconds <= 0:
                continue
            for link, before, after in zip(
                timeline.links, one.sent_bytes, other.sent_bytes, strict=True
            ):
                name = f"{_link_text(link)}, {_MEASURED}"
                gbps = (after - before) * 8e-9 / seconds
                self._trace.counter(timeline.server, name, self._at(one.time_ns), gbps)

    def _add_calls(self) -> None:
        """Every call of every rank. Arrows lead from sends to receives, and from the last caller of
        a collective to the members that waited for it."""
        sends: dict[tuple[Any, ...], tuple[int, int, float, float]] = {}
        receipts: dict[tuple[Any, ...], tuple[int, int, float, float]] = {}
        collectives: dict[tuple[str, int], list[tuple[int, int, float, float]]] = defaultdict(list)
        for _, dump in self._recorded:
            if dump is None:
                continue
            for call in self._within(dump.calls):
                where = self._add_call(dump.rank, call)
                if call.message is None:
                    collectives[call.group, call.number].append(where)
                    continue
                of = call.message
                key = (call.group, of.sender, of.receiver, of.tag, of.place)
                (sends if call.name == _MESSAGES[0] else receipts)[key] = where
        for key, receipt in receipts.items():
            if key in sends:
                self._trace.arrow("message", sends[key], receipt)
        for (group, number), members in collectives.items():
            last = max(members, key=lambda where: where[2])
            for member in members:
                if member is not last:
                    self._trace.arrow(f"collective {number} of group {group}", last, member)

    def _within(self, calls: Iterable[RecordedCall]) -> list[RecordedCall]:
        ordered = sorted(calls, key=lambda call: call.called_ns)
        begin = bisect.bisect_left([call.called_ns for call in ordered], self._zero_ns)
        return [
            call
            for call in ordered[begin:]
            if call.completed_ns is not None and call.called_ns <= self._until_ns
        ]

    def _add_call(self, rank: int, call: RecordedCall) -> tuple[int, int, float, float]:
        assert call.completed_ns is not None
        kind = "collectives" if call.message is None else "messages"
        number = f" {call.number}" if call.message is None else ""
        end_ns = max(call.completed_ns, call.called_ns)
        waited = 0 if call.started_ns is None else max(0, call.started_ns - call.called_ns)
        return self._trace.slice(
            self._server[rank],
            self._thread(kind, rank),
            f"{call.name}{number}",
            self._at(call.called_ns),
            self._at(end_ns),
            group=call.group,
            size_bytes=call.bytes,
            behind_others_us=waited / 1e3,
            rank=rank,
        )
