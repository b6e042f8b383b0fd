"""Leaf-spine: a Clos network of two levels; every leaf has cables to every spine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import Topology, Wires, link_gbps_of, switched

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    server_gbps: float | None = None,
    radix: int | None = None,
    oversubscription: float = 1.0,
) -> Topology:
    """Leaves of radix/2 servers and radix/2 / `oversubscription` uplinks, spines of `radix` ports.

    `radix` defaults to the smallest even k with k^2/2 >= servers. Every link has `server_gbps`
    (default: degree x link rate). Where there are fewer leaves than ports of a spine, a spine has
    several cables to a leaf, and there are fewer spines. `demand` and `seed` change nothing. Raises
    DocumentError for an invalid cluster and ValueError for a radix that is odd or too small, or an
    oversubscription below 1.
    """
    wires = Wires.of(cluster)
    smallest = 2
    while smallest**2 // 2 < cluster.servers:
        smallest += 2
    radix = smallest if radix is None else radix
    if radix < 2 or radix % 2 or radix**2 // 2 < cluster.servers:
        raise ValueError(
            f"radix: {radix} is not even and enough for {cluster.servers} servers; use {smallest}"
        )
    if not oversubscription >= 1:
        raise ValueError(f"oversubscription: {oversubscription} is not at least 1")
    half = radix // 2
    gbps = link_gbps_of(cluster, server_gbps)
    leaves = math.ceil(cluster.servers / half)
    wires.to_leaves(range(cluster.servers), cluster.servers, half, gbps)
    nodes = cluster.servers + leaves
    if leaves > 1:
        uplinks = max(1, round(half / oversubscription))
        width = radix // leaves  # cables from a spine to each leaf
        for leaf in range(leaves):
            for i in range(uplinks):
                wires.cable(cluster.servers + leaf, nodes + i // width, gbps)
        nodes += math.ceil(uplinks / width)
    return switched("leaf-spine", cluster, wires, nodes=nodes, switch_ports=radix)
