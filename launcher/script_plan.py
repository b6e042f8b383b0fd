"""The plan of a run without a model: for what a trace of the script found, else for rings alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.units import counted, format_bytes
from torch_topoopt.plan import Demand, GroupDemand, Placement, Plan, Prediction
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.plan import Cluster, Network, Policy
    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script import CommunicationTrace, TraceLimits, TrainingScript
    from torch_topoopt.user_functions import UserFunction


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


def demand_of_trace(trace: CommunicationTrace, cluster: Cluster) -> Demand:
    """The demand of one iteration between servers; raises DocumentError if there is none."""
    from torch_topoopt.profile.script import demand_of, on_servers

    demand, _ = demand_of(trace)
    return on_servers(demand, cluster.accelerators_per_server)


def demand_of_script(
    script: Script | None, cluster: Cluster, server: ForkServer | None = None
) -> tuple[Demand, CommunicationTrace | None, str]:
    """The demand that a trace of `script` finds, and the trace; else an unknown one, and why."""
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


def unknown_demand(cluster: Cluster) -> Demand:
    """One AllReduce among all servers, of an unknown number of bytes."""
    return Demand((GroupDemand(tuple(range(cluster.servers)), 0),), ())


def plan_for_demand(
    cluster: Cluster,
    demand: Demand,
    trace: CommunicationTrace | None,
    *,
    name: str,
    seed: int,
    network: Network | None = None,
    mode: Literal["paper", "best"] | UserFunction = "paper",
    routing: Policy | UserFunction = "shortest",
) -> Plan:
    """Links, rings and routes for `demand`, and the bytes that it puts on each link.

    `trace` is what the demand comes from; None where it is not known. A `network` that is there
    already gets rings for the groups of the demand; another is found by `mode` and `routing`. The
    time of an iteration is not predicted. Raises InputError where no network can be found.
    """
    from torch_topoopt.sim import complete_groups
    from torch_topoopt.topology.best.network_search import NetworkSearch
    from torch_topoopt.topology.find_network import find_network

    found = network
    if found is None:
        try:
            found = find_network(
                cluster, demand, mode=mode, routing=routing, search=NetworkSearch(seed=seed)
            )
        except ValueError as error:
            raise InputError(str(error)) from None
    reducing = tuple(Placement("group", group.servers) for group in demand.groups)
    found = complete_groups(cluster, found, reducing)
    plan = Plan.of_network(
        cluster, found, demand, model=name, mode=str(mode) if network is None else "fixed"
    )
    return replace(
        plan,
        seed=seed,
        routing=str(routing) if network is None else "shortest",
        prediction=predicted(cluster, found, demand, trace),
    ).validate()


def predicted(
    cluster: Cluster, network: Network, demand: Demand, trace: CommunicationTrace | None
) -> Prediction:
    """The bytes of one iteration on the links of `network`; times are not known (0)."""
    from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

    if not network.links or trace is None:
        return Prediction(0.0, 0.0, 0.0, 0.0, (0,) * len(network.links))
    traffic = traffic_matrix(network, demand, cluster.servers)
    _to_and_from_roots(traffic, network, trace, cluster.accelerators_per_server)
    loads = link_bytes(network, traffic.clip(min=0.0))
    return Prediction(0.0, 0.0, 0.0, 0.0, tuple(round(load) for load in loads.tolist()))


def _to_and_from_roots(
    traffic: NDArray[np.float64], network: Network, trace: CommunicationTrace, per_server: int
) -> None:
    """Moves the bytes of Broadcasts and Reduces, spread evenly in `traffic`, to where they are:
    nothing is sent to the root of a Broadcast, and nothing by that of a Reduce."""
    from torch_topoopt.profile.script import rooted_demands

    rings = {frozenset(group.servers): group.rings for group in network.groups}
    for rooted in rooted_demands(trace, per_server):
        count = len(rooted.servers)
        for ring in rings[frozenset(rooted.servers)]:
            share_bytes = ring.share * rooted.size_bytes
            following = (*ring.servers[1:], ring.servers[0])
            for source, target in zip(ring.servers, following, strict=True):
                is_left_out = rooted.root == (source if rooted.is_reduce else target)
                even = share_bytes * (count - 1) / count
                traffic[source, target] += (0.0 if is_left_out else share_bytes) - even


def short_calls(trace: CommunicationTrace) -> str:
    """A sentence for a script whose collectives are short, so may not go by rings; else empty."""
    last = trace.iterations - 1
    sizes = [c.size_bytes for c in trace.calls if c.iteration == last and c.size_bytes]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    if mean >= SHORT_BYTES:
        return ""
    return (
        f"the prediction is of rings; collectives as short as these ({format_bytes(mean)} on "
        "average) may take other algorithms, chosen when the job starts: see docs/scripts.md"
    )


def name_of(script: str, *, module: bool) -> str:
    """The script's name in a plan."""
    return script if module else Path(script).name
