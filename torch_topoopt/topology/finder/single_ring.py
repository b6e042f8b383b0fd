"""A single ring: the reference for comparisons with a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import (
    Cluster,
    Demand,
    Group,
    Network,
    Ring,
    validate_demand,
    validate_network,
)
from torch_topoopt.topology.finder.group_rings import merge_groups
from torch_topoopt.topology.finder.port_allocator import PortAllocator
from torch_topoopt.topology.routing.load_checks import validate_loads
from torch_topoopt.topology.routing.routes import plan_routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Link


def single_ring(cluster: Cluster, demand: Demand) -> Network:
    """The servers wired as one plain ring in the order of their numbers, and nothing else.

    It models a backend with one path: every group has one ring, in ascending order and one
    direction, and every pair one shortest route. On duplex the cables also carry the other
    direction, for routes only. Other ports stay unused.

    `groups` lists the whole cluster first, as `find_network` does.

    Raises DocumentError if `cluster` or `demand` is not valid.
    """
    cluster.validate()
    validate_demand(cluster, demand)
    wiring = PortAllocator(cluster)
    if cluster.servers > 1:
        wiring.add_stride(range(cluster.servers), 1)
    return ring_network(cluster, demand, wiring.links)


def ring_network(cluster: Cluster, demand: Demand, links: Sequence[Link]) -> Network:
    """These `links`, which connect all servers, with one ring in ascending order for each group of
    `demand`, and a shortest route for every pair; the whole cluster is the first group.

    Raises DocumentError if the network breaks a rule.
    """
    demanded = merge_groups(cluster, demand)
    groups = tuple(
        Group(g.servers, (Ring(g.servers, 1.0),) if len(g.servers) > 1 else ())
        for g in sorted(demanded, key=lambda g: len(g.servers) < cluster.servers)
    )
    routes = plan_routes(cluster.servers, links, {}, {})
    network = validate_network(cluster, Network(tuple(links), groups, routes))
    return validate_loads(cluster.servers, network, demand)
