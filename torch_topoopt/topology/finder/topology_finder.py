"""Links, rings and routes for a demand, by the rules of the paper or of its artifact.

Source: paper section 4.2, Algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch_topoopt.plan import (
    Cluster,
    Demand,
    Group,
    Network,
    validate_demand,
)
from torch_topoopt.topology.finder.crossed_rings import crossing_of, group_of_rings, spare_cables
from torch_topoopt.topology.finder.group_rings import (
    Servers,
    degree_split,
    merge_groups,
    ring_counts,
    wire_crossing,
    wire_further_rings,
    wire_partial_strides,
    wire_repeated_strides,
    wire_rings,
)
from torch_topoopt.topology.finder.matching import wire_free_ports, wire_matchings
from torch_topoopt.topology.finder.multi_hop_rings import short_ring
from torch_topoopt.topology.finder.port_allocator import PortAllocator
from torch_topoopt.topology.finder.released import released_order, wire_released
from torch_topoopt.topology.finder.totient_perms import ring_order
from torch_topoopt.topology.finder.unequal_rates import weighted_by_rate
from torch_topoopt.topology.routing.load_checks import validate_loads
from torch_topoopt.topology.routing.loads import demand_cost
from torch_topoopt.topology.routing.pair_bytes import demand_matrix, pairs_of
from torch_topoopt.topology.routing.policies import routed_by
from torch_topoopt.topology.routing.routes import (
    all_hop_distances,
    group_bytes,
    plan_routes,
    ring_pair_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.plan import Pair, Policy
    from torch_topoopt.user_functions import UserFunction


def wire_by_rule(
    cluster: Cluster,
    demand: Demand,
    *,
    mode: Literal["paper", "released"] = "paper",
    paths: int = 4,
    routing: Policy | UserFunction = "shortest",
) -> Network:
    """Modes `paper` and `released`, see `find_network`. No search."""
    cluster.validate()
    validate_demand(cluster, demand)
    demanded = merge_groups(cluster, demand)
    wiring = PortAllocator(cluster)
    if mode == "paper":
        strides, matching = wire_links(wiring, demand)
        groups = _rings(wiring, strides, short_ring)
    else:
        strides, matching = wire_released(wiring, demanded), ()
        groups = _rings(wiring, strides, released_order)
    network = _routed(wiring, demand, groups, strides, paths if mode == "paper" else 1)
    if mode == "paper" and (crossed := _crossed(wiring, groups, strides, matching)):
        other = _routed(wiring, demand, crossed, strides, paths)
        network = min(network, other, key=lambda n: demand_cost(cluster, demand, n))
    network = routed_by(cluster, demand, network, routing, paths=paths)
    return validate_loads(cluster.servers, network, demand)


def _routed(
    wiring: PortAllocator,
    demand: Demand,
    groups: tuple[Group, ...],
    strides: Mapping[Servers, tuple[int, ...]],
    paths: int,
) -> Network:
    """The network of these links and rings, with routes."""
    cluster = wiring.cluster
    ring_bytes = ring_pair_bytes(groups, group_bytes(demand))
    whole = strides[tuple(range(cluster.servers))]
    coins = {c for p in whole for c in ((p, cluster.servers - p) if wiring.duplex else (p,))}
    pairs = demand_matrix(demand, cluster.servers)
    routes = plan_routes(
        cluster.servers,
        wiring.links,
        ring_bytes,
        pairs,
        coins=sorted(coins),
        paths=paths,
    )
    network = Network(tuple(wiring.links), groups, routes)
    if cluster.port_gbps is not None:
        network = weighted_by_rate(cluster, network, demand, paths)
    return network


def wire_links(
    wiring: PortAllocator, demand: Demand
) -> tuple[dict[Servers, tuple[int, ...]], tuple[Pair, ...]]:
    """Steps 1 to 3 of Algorithm 1: wires all links.

    Returns the coprime strides of every group, and the pairs of a matching that crosses the last
    ring over all servers, () without one.
    """
    cluster = wiring.cluster
    pairs = demand_matrix(demand, cluster.servers)
    demanded = merge_groups(cluster, demand)
    degree = degree_split(cluster, demanded, sum(pairs.sum(axis=1).tolist()))
    strides = wire_rings(wiring, ring_counts(cluster, demanded, degree))
    matching: tuple[Pair, ...] = ()
    if cluster.servers > 1:
        if max(map(wiring.free_transmitters, range(cluster.servers))):
            wire_matchings(wiring, pairs_of(pairs))
        wire_further_rings(wiring, strides)
        wire_partial_strides(wiring, strides[tuple(range(cluster.servers))])
        if cluster.parallel_links:
            wire_repeated_strides(wiring, strides)
        matching = wire_crossing(wiring, strides[tuple(range(cluster.servers))])
        wire_free_ports(wiring)
    return strides, matching


def _crossed(
    wiring: PortAllocator,
    groups: tuple[Group, ...],
    strides: Mapping[Servers, tuple[int, ...]],
    matching: Sequence[Pair],
) -> tuple[Group, ...]:
    """`groups` with further rings over all servers, through a matching that crosses one of them:
    `matching`, or the cables that no ring takes; () if there is none."""
    whole = tuple(range(wiring.cluster.servers))
    orders = [ring_order(whole, stride) for stride in strides[whole]]
    if not wiring.duplex or not orders or len(whole) % 2:
        return ()
    if not matching:
        laid = [ring_order(servers, p) for servers, of_group in strides.items() for p in of_group]
        matching = spare_cables(wiring.links, laid)
    at, crossed = crossing_of(orders, matching)
    if not crossed:
        return ()
    orders.append(orders.pop(at))
    return tuple(
        group_of_rings(whole, orders, duplex=True, crossed=crossed) if g.servers == whole else g
        for g in groups
    )


def _rings(
    wiring: PortAllocator,
    strides: dict[Servers, tuple[int, ...]],
    order_over_routes: Callable[[Servers, list[list[int]]], Servers],
) -> tuple[Group, ...]:
    """The rings of every group: one per stride, or one over routes where the group has no link."""
    distances: list[list[int]] = []
    groups = []
    for servers in sorted(strides, key=lambda servers: len(servers) < wiring.cluster.servers):
        if len(servers) == 1:
            groups.append(Group(servers, ()))
            continue
        orders = [ring_order(servers, stride) for stride in strides[servers]]
        if not orders:
            distances = distances or all_hop_distances(wiring.cluster.servers, wiring.links)
            orders = [order_over_routes(servers, distances)]
        groups.append(group_of_rings(servers, orders, duplex=wiring.duplex))
    return tuple(groups)
