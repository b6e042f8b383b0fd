"""The plan of a script without a model: for the demand in its trace, else for rings alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from torch_topoopt.plan import (
    AllToAll,
    Demand,
    GroupDemand,
    PairDemand,
    PairTable,
    Placement,
    Plan,
    Prediction,
)
from torch_topoopt.plan.document import POLICIES
from torch_topoopt.planner.pricing import rounded
from torch_topoopt.profile.script import demand_of, on_servers, rooted_demands
from torch_topoopt.sim import complete_groups
from torch_topoopt.sim.collective_costs import EMULATED_COST, IdealSwitchCosts, NetworkCosts
from torch_topoopt.sim.demand_seconds import fastest_for
from torch_topoopt.sim.script_iteration import (
    EVEN_PACING,
    emulated_processors,
    script_iteration,
)
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.single_ring import single_ring
from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.plan import Cluster, Network, Policy
    from torch_topoopt.profile.script import CommunicationTrace
    from torch_topoopt.profile.script.step_timing import StepTiming
    from torch_topoopt.sim import IterationEstimate
    from torch_topoopt.sim.collective_costs import CollectiveCosts
    from torch_topoopt.sim.script_iteration import LinkPacing
    from torch_topoopt.user_functions import UserFunction


def demand_of_trace(trace: CommunicationTrace, cluster: Cluster) -> Demand:
    """The demand of one iteration between servers; raises DocumentError if there is none."""
    demand, _ = demand_of(trace)
    return on_servers(demand, cluster.accelerators_per_server)


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

    `trace` is the source of the demand, if known. An existing `network` gets rings for the groups
    of the demand; otherwise `mode` and `routing` find one, mode best that with the least
    `demand_seconds`. The time of an iteration is not predicted. Raises ValueError where no network
    can be found.
    """
    found = network
    if found is None:
        found = find_network(
            cluster,
            demand,
            mode=mode,
            routing=routing,
            search=fastest_for(mode, cluster, demand, NetworkSearch(seed=seed)),
        )
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


def demand_among(demand: Demand, left: Sequence[int]) -> Demand:
    """The part of `demand` among the servers `left`, renumbered in that order."""
    number = {server: new for new, server in enumerate(left)}

    def among(servers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[server] for server in servers if server in number)

    groups = (GroupDemand(among(group.servers), group.size_bytes) for group in demand.groups)
    table = demand.pairs if isinstance(demand.pairs, PairTable) else PairTable(listed=demand.pairs)
    everyone = (AllToAll(among(each.servers), each.size_bytes) for each in table.all_to_all)
    listed = tuple(
        PairDemand(number[pair.source], number[pair.target], pair.size_bytes)
        for pair in table.listed
        if pair.source in number and pair.target in number
    )
    return Demand(
        tuple(group for group in groups if len(group.servers) > 1),
        PairTable(tuple(each for each in everyone if len(each.servers) > 1), listed),
    )


def plan_for_remaining(plan: Plan, cluster: Cluster, left: Sequence[int]) -> Plan:
    """A plan for the demand of a data-parallel `plan` among the servers `left`, rewired as
    `cluster`. Nothing is predicted. Raises ValueError where no network can be found."""
    made = plan_for_demand(
        cluster,
        demand_among(plan.demand, left),
        None,
        name=plan.model,
        seed=plan.seed,
        mode="best" if plan.mode == "best" else "paper",
        routing=next((policy for policy in POLICIES if policy == plan.routing), "shortest"),
    )
    everyone = tuple(range(cluster.servers))
    strategy = (Placement(placement.operator, everyone) for placement in plan.strategy)
    return replace(
        made, batch_size=plan.batch_size, strategy=tuple(strategy), cost_model=plan.cost_model
    ).validate()


def predicted(
    cluster: Cluster, network: Network, demand: Demand, trace: CommunicationTrace | None
) -> Prediction:
    """The bytes of one iteration on the links of `network`; times are unknown (0)."""
    if not network.links or trace is None:
        return Prediction(0.0, 0.0, 0.0, 0.0, (0,) * len(network.links))
    traffic = traffic_matrix(network, demand, cluster.servers)
    _to_and_from_roots(traffic, network, trace, cluster.accelerators_per_server)
    loads = link_bytes(network, traffic.clip(min=0.0))
    return Prediction(0.0, 0.0, 0.0, 0.0, tuple(round(load) for load in loads.tolist()))


def with_script_times(
    plan: Plan,
    timing: StepTiming,
    *,
    payload_share: float = 1.0,
    pacing: LinkPacing = EVEN_PACING,
    algorithm: str = "auto",
) -> Plan:
    """`plan` with the predicted times of an iteration of the script that was timed.

    Links carry `payload_share` of their rate. Collectives take `algorithm` where they can. Raises
    DocumentError for a script whose messages have unknown senders.
    """
    cluster, network = plan.cluster, plan.network
    model = plan.cost_model or EMULATED_COST

    def iteration(on: Network | None, costs: CollectiveCosts) -> IterationEstimate:
        return script_iteration(
            cluster,
            on,
            costs,
            timing.events,
            processors=emulated_processors(timing.ranks_at_once),
            payload_share=payload_share,
            pacing=pacing,
        )

    here = iteration(network, NetworkCosts(cluster, network, model, algorithm))
    ring = single_ring(cluster, plan.demand)
    times = replace(
        plan.prediction,
        iteration_s=rounded(here.iteration_s),
        compute_s=rounded(here.compute_s),
        single_ring_s=rounded(
            iteration(ring, NetworkCosts(cluster, ring, model, "multi_ring")).iteration_s
        ),
        ideal_switch_s=rounded(iteration(None, IdealSwitchCosts(cluster)).iteration_s),
    )
    return replace(plan, prediction=times).validate()


def _to_and_from_roots(
    traffic: NDArray[np.float64], network: Network, trace: CommunicationTrace, per_server: int
) -> None:
    """Moves the bytes of Broadcasts and Reduces, spread evenly in `traffic`, to their links:
    nobody sends to the root of a Broadcast, and the root of a Reduce sends nothing."""
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
