"""A script to trace if there is no model, and its demand in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.rank_work import MOST_KINDS
from torch_topoopt.plan.units import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.plan import Cluster, Demand
    from torch_topoopt.plan.rank_work import RankWork
    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script import CommunicationTrace, TraceLimits, TrainingScript
    from torch_topoopt.profile.script.step_timing import StepTiming


SAME = 0.01  # relative difference of an iteration's bytes that counts as equal
_EXPLAINED = 0.1  # from this difference on there is always a cause
# A trace and ranks count their sizes alike.
_COMPARED = frozenset(
    {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll"}
)


@dataclass(frozen=True)
class Script:
    """A script to trace, and the limits of its trace."""

    runs: TrainingScript
    limits: TraceLimits
    iterations: int | None = None  # None: until they repeat, if they are quick

    @property
    def name(self) -> str:
        """The name of the file, or the module."""
        return self.runs.name

    def trace(self, cluster: Cluster, server: ForkServer | None) -> CommunicationTrace:
        """Its collectives in a world of `cluster`; raises ScriptError as `trace_script` does."""
        from torch_topoopt.profile.script import World, trace_script

        per_server = cluster.accelerators_per_server
        return trace_script(
            self.runs,
            World(cluster.servers * per_server, per_server),
            iterations=self.iterations,
            limits=self.limits,
            server=server,
        )


def demand_of_script(
    script: Script | None, cluster: Cluster, server: ForkServer | None = None
) -> tuple[Demand, CommunicationTrace | None, str]:
    """The demand in a trace of `script`, and the trace; else an unknown one, and the reason."""
    from torch_topoopt.planner.demand_plan import demand_of_trace, unknown_demand
    from torch_topoopt.profile.script import ScriptError

    if script is None:
        return unknown_demand(cluster), None, ""
    try:
        trace = script.trace(cluster, server)
        return demand_of_trace(trace, cluster), trace, ""
    except (ScriptError, DocumentError) as error:
        return unknown_demand(cluster), None, str(error)


def demand_of_steps(
    script: Script, cluster: Cluster, timing: StepTiming
) -> tuple[Demand, CommunicationTrace | None, str]:
    """As `demand_of_script`, from timed steps."""
    from torch_topoopt.planner.demand_plan import demand_of_trace, unknown_demand
    from torch_topoopt.profile.script.step_timing import trace_of

    try:
        trace = trace_of(script.runs, timing)
        return demand_of_trace(trace, cluster), trace, ""
    except DocumentError as error:
        return unknown_demand(cluster), None, str(error)


def demand_text(demand: Demand) -> str:
    """Such as "4.2 MB to AllReduce in 1 group per iteration"."""
    reduced = sum(group.size_bytes for group in demand.groups)
    sent = sum(pair.size_bytes for pair in demand.pairs)
    parts = []
    if demand.groups:
        groups = counted(len(demand.groups), "group")
        parts.append(f"{format_bytes(reduced)} to AllReduce in {groups}")
    if sent:
        parts.append(f"{format_bytes(sent)} from server to server")
    return f"{' and '.join(parts) or 'nothing between servers'} per iteration"


def cause_of_difference(
    trace: CommunicationTrace, works: Sequence[RankWork], difference: float | None
) -> str:
    """A sentence if the bytes of links differ from those of the trace; else "".

    `difference` is the largest of any link, relative; None where nothing was predicted on one.
    """
    if difference is not None and difference <= SAME:
        return ""
    if others := other_calls(trace, works):
        return others
    if not works or (difference is not None and difference <= _EXPLAINED):
        return ""
    if len(trace.ranks) < trace.world_size:
        return (
            f"the collectives of the traced ranks are as predicted, but {len(trace.ranks)} of "
            f"{trace.world_size} ranks were traced: others called other collectives"
        )
    return (
        "the collectives of all ranks are as predicted: messages between two ranks, gathers or "
        "scatters differ from those of the trace"
    )


def other_calls(trace: CommunicationTrace, works: Sequence[RankWork]) -> str:
    """A sentence if a rank's collectives differ from those of the trace; else "".

    Bytes per iteration are compared, by the size of the group.
    """
    for work in works:
        if work.rank not in trace.ranks or len(work.operations) >= MOST_KINDS:
            continue
        traced: Counter[int] = Counter()
        for call in trace.repeated:
            if call.rank == work.rank and call.operation in _COMPARED and len(call.group) > 1:
                traced[len(call.group)] += call.size_bytes
        for ranks, size_bytes in traced.items():
            traced[ranks] = trace.per_iteration(size_bytes)
        measured: Counter[int] = Counter()
        for one in work.operations:
            if not one.name.startswith(("gather", "scatter")):
                measured[one.ranks] += round(one.per_iteration * one.size_bytes)
        most = max(0, *traced.values(), *measured.values())
        if any(abs(measured[ranks] - traced[ranks]) > SAME * most for ranks in traced | measured):
            figures = (
                f"rank {work.rank} called {_by_group(measured)} per iteration, and "
                f"{_by_group(traced)} in the trace"
            )
            if trace.period > 1:
                return (
                    f"iterations differ: predicted is the mean of {trace.period} that were traced, "
                    f"and {work.iterations} others were measured: {figures}"
                )
            return (
                "later iterations did not repeat the collectives of the traced ones: "
                f"{figures}; --trace-iterations traces more of them"
            )
    return ""


def _by_group(size_bytes: Mapping[int, int]) -> str:
    """Such as "305 kB in groups of 2 and 153 kB in groups of 4"."""
    parts = [
        f"{format_bytes(size)} in groups of {ranks}"
        for ranks, size in sorted(size_bytes.items())
        if size
    ]
    return " and ".join(parts) or "none"


def name_of(script: str, *, module: bool) -> str:
    """The script's name in a plan."""
    return script if module else Path(script).name
