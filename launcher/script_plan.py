"""A script to trace where there is no model, and its demand in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import counted, format_bytes

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand
    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script import CommunicationTrace, TraceLimits, TrainingScript


SHORT_BYTES = 256 << 10  # calls of less, on average, may go by trees on a network of any speed


@dataclass(frozen=True)
class Script:
    """A script to trace, and what its trace may take."""

    runs: TrainingScript
    limits: TraceLimits

    @property
    def name(self) -> str:
        """Of the file, or the module."""
        return self.runs.name

    def trace(self, cluster: Cluster, server: ForkServer | None) -> CommunicationTrace:
        """Its collectives in a world of `cluster`; raises ScriptError as `trace_script` does."""
        from torch_topoopt.profile.script import World, trace_script

        per_server = cluster.accelerators_per_server
        return trace_script(
            self.runs,
            World(cluster.servers * per_server, per_server),
            limits=self.limits,
            server=server,
        )


def demand_of_script(
    script: Script | None, cluster: Cluster, server: ForkServer | None = None
) -> tuple[Demand, CommunicationTrace | None, str]:
    """The demand that a trace of `script` finds, and the trace; else an unknown one, and why."""
    from torch_topoopt.planner.demand_plan import demand_of_trace, unknown_demand
    from torch_topoopt.profile.script import ScriptError

    if script is None:
        return unknown_demand(cluster), None, ""
    try:
        trace = script.trace(cluster, server)
        return demand_of_trace(trace, cluster), trace, ""
    except (ScriptError, DocumentError) as error:
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


def short_calls(trace: CommunicationTrace) -> str:
    """A sentence for a script whose collectives are short, so may not go by rings; else empty."""
    last = trace.iterations - 1
    sizes = [c.size_bytes for c in trace.calls if c.iteration == last and c.size_bytes]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    if mean >= SHORT_BYTES:
        return ""
    return (
        f"the prediction is of rings; collectives as short as these ({format_bytes(mean)} on "
        "average) may take other algorithms, chosen when the job starts: see docs/guides/scripts.md"
    )


def name_of(script: str, *, module: bool) -> str:
    """The script's name in a plan."""
    return script if module else Path(script).name
