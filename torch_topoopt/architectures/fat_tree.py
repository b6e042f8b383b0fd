"""k-ary fat-tree (Al-Fares et al., SIGCOMM 2008) of three levels, for any number of servers.

Pods of k/2 edge and k/2 aggregation switches, k/2 servers on an edge switch. For other numbers of
servers than k^3/4, unneeded pods and edge switches are omitted. Core switches are omitted by giving
the others several cables to a pod, so the bisection stays full. Tapering omits uplinks.
"""

from __future__ import annotations

import math
from dataclasses import replace
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
    edge_taper: float = 1.0,
    core_taper: float = 1.0,
) -> Topology:
    """A fat-tree of switches with `radix` ports (default: the smallest sufficient radix).

    Every link has `server_gbps` (default: degree x link rate), and each server one. `edge_taper`
    and `core_taper` are the remaining fractions of the uplinks of edge and aggregation switches.
    `demand` and `seed` change nothing. Raises DocumentError for an invalid cluster and
    ValueError for a radix that is odd or too small, or a taper outside (0, 1].
    """
    wires = Wires.of(cluster)
    radix = smallest_radix(cluster.servers) if radix is None else radix
    if radix < 2 or radix % 2 or radix**3 // 4 < cluster.servers:
        raise ValueError(
            f"radix: {radix} is not even and enough for {cluster.servers} servers; use "
            f"{smallest_radix(cluster.servers)}"
        )
    for name, taper in (("edge_taper", edge_taper), ("core_taper", core_taper)):
        if not 0 < taper <= 1:
            raise ValueError(f"{name}: {taper} is not above 0 and at most 1")
    half = radix // 2
    gbps = link_gbps_of(cluster, server_gbps)
    edges = math.ceil(cluster.servers / half)
    first_edge = cluster.servers
    wires.to_leaves(range(cluster.servers), first_edge, half, gbps)
    nodes = first_edge + edges
    if edges > 1:
        nodes = _aggregate(wires, first_edge, edges, half, gbps, edge_taper, core_taper)
    return switched("fat-tree", cluster, wires, nodes=nodes, switch_ports=radix)


def build_oversubscribed(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    server_gbps: float | None = None,
    radix: int | None = None,
    oversubscription: float = 2.0,
) -> Topology:
    """A fat-tree whose edge switches have 1/`oversubscription` of their uplinks: half of them in
    the TopoOpt paper, section 5.1.

    The rest is as in `build`. Raises also ValueError for an oversubscription below 1.
    """
    if not oversubscription >= 1:
        raise ValueError(f"oversubscription: {oversubscription} is not at least 1")
    taper = 1 / oversubscription
    tree = build(cluster, demand, server_gbps=server_gbps, radix=radix, edge_taper=taper)
    return replace(tree, architecture="oversubscribed-fat-tree")


def _aggregate(
    wires: Wires,
    first_edge: int,
    edges: int,
    half: int,
    gbps: float,
    edge_taper: float,
    core_taper: float,
) -> int:
    """Wires the levels above the edge switches; returns the number of nodes."""
    pods = math.ceil(edges / half)
    uplinks = max(1, round(half * edge_taper))  # of an edge switch
    first = first_edge + edges
    for edge in range(edges):
        for i in range(uplinks):
            wires.cable(first_edge + edge, first + edge // half * uplinks + i, gbps)
    if pods == 1:
        return first + uplinks
    core_links = max(1, round(half * core_taper))  # of an aggregation switch
    width = 2 * half // pods  # cables from one core switch to each pod
    cores = math.ceil(core_links / width)  # for the i-th aggregation switch of every pod
    first_core = first + pods * uplinks
    for pod in range(pods):
        for i in range(uplinks):
            for j in range(core_links):
                wires.cable(first + pod * uplinks + i, first_core + i * cores + j // width, gbps)
    return first_core + uplinks * cores


def smallest_radix(servers: int) -> int:
    """The smallest even k with k^3/4 >= servers."""
    radix = 2
    while radix**3 // 4 < servers:
        radix += 2
    return radix
