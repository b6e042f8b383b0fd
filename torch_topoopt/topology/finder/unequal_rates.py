"""Rings and routes of a wired network with ports of unequal rates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.plan import shared_by_slowest_link
from torch_topoopt.topology.routing.pair_bytes import demand_matrix
from torch_topoopt.topology.routing.routes import group_bytes, plan_routes, ring_pair_bytes

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand, Group, Network


def groups_by_rate(cluster: Cluster, network: Network) -> tuple[Group, ...]:
    """The groups with shares that follow the slowest link of each ring."""
    table, rates = network.routes_by_pair(), cluster.pair_gbps(network.links)
    return tuple(
        replace(group, rings=shared_by_slowest_link(group.rings, table, rates))
        for group in network.groups
    )


def weighted_by_rate(cluster: Cluster, network: Network, demand: Demand, paths: int) -> Network:
    """`network` with ring shares, and routes for `demand`, that follow the rates of its links.

    Shares of rings over routes depend on the routes, and routes on the rings' load, so both are
    computed twice.
    """
    sizes, pairs = group_bytes(demand), demand_matrix(demand, cluster.servers)
    rates = cluster.pair_gbps(network.links)
    for _ in range(2):
        network = replace(network, groups=groups_by_rate(cluster, network))
        sent = ring_pair_bytes(network.groups, sizes)
        routes = plan_routes(cluster.servers, network.links, sent, pairs, paths=paths, rates=rates)
        network = replace(network, routes=routes)
    return replace(network, groups=groups_by_rate(cluster, network))
