"""Hierarchical TopoOpt (section 3): servers under ToR switches, the ToRs joined through optics.

TopologyFinder wires the ToRs for the summed demand of their servers. An AllReduce of all servers
goes through the servers of one ToR and on to the next ToR of the ring.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import NodeLink, NodePath, Topology, Wires
from torch_topoopt.architectures.topoopt import all_reduce_demand
from torch_topoopt.plan import Demand, GroupDemand, PairDemand, Ring
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Network


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    servers_per_tor: int = 8,
    uplinks: int | None = None,
) -> Topology:
    """ToRs of `servers_per_tor` servers with `uplinks` ports each to patch panels.

    Every link has degree x link rate; `uplinks` defaults to one per server of a ToR, made even, and
    to what the number of ToRs allows. Without a demand: one AllReduce of all servers. `seed`
    changes nothing. Raises DocumentError for an invalid cluster, and ValueError or DocumentError
    for sizes that the ToRs cannot be wired with.
    """
    wires = Wires.of(cluster)
    if servers_per_tor < 1:
        raise ValueError(f"servers_per_tor: {servers_per_tor} is not at least 1")
    n = cluster.servers
    tors = math.ceil(n / servers_per_tor)
    gbps = cluster.degree * cluster.link_gbps
    for server in range(n):
        wires.cable(server, n + server // servers_per_tor, gbps)
    if uplinks is None:
        uplinks = default_uplinks(tors, servers_per_tor)
    rings: tuple[Ring, ...] = (Ring(tuple(range(n)), 1.0),) if n > 1 else ()
    paths: tuple[NodePath, ...] = ()
    if tors > 1:
        upper = replace(
            cluster, servers=tors, degree=uplinks, link_gbps=gbps, accelerators_per_server=1
        )
        asked = _between_tors(demand or all_reduce_demand(n), servers_per_tor, tors)
        network = find_network(upper, asked)
        wires.links += [
            NodeLink(n + link.source, n + link.target, gbps, cluster.link_latency_s)
            for link in network.links
        ]
        paths = tuple(
            NodePath(tuple(n + tor for tor in route.servers), route.weight)
            for route in network.routes
        )
        rings = _rings_of_servers(network, n, servers_per_tor)
    return Topology(
        architecture="topoopt-tors",
        servers=n,
        nodes=n + tors,
        links=tuple(wires.links),
        rings=rings,
        server_ports=1,
        switch_ports=servers_per_tor + (uplinks if tors > 1 else 0),
        paths=paths,
        optics="patch-panel",
        duplex=cluster.ports == "duplex",
    ).validate()


def _rings_of_servers(network: Network, servers: int, size: int) -> tuple[Ring, ...]:
    """Rings over all servers: through those of one ToR after the other, in the order of the rings
    over all ToRs of `network`. Each ToR has `size` servers."""
    tors = math.ceil(servers / size)
    whole = next(group for group in network.groups if len(group.servers) == tors)
    return tuple(
        Ring(
            tuple(
                server
                for tor in ring.servers
                for server in range(tor * size, min(servers, (tor + 1) * size))
            ),
            ring.share,
        )
        for ring in whole.rings
    )


def default_uplinks(tors: int, servers_per_tor: int) -> int:
    """One per server, even (a duplex ring takes two), at most one to every other ToR."""
    if tors <= 2:
        return 1
    most = min(servers_per_tor + servers_per_tor % 2, tors - 1)
    return most - most % 2


def _between_tors(demand: Demand, size: int, tors: int) -> Demand:
    """The demand between ToRs, from that of their servers; an AllReduce crosses ToRs once each."""
    groups: dict[tuple[int, ...], int] = {}
    for group in demand.groups:
        touched = tuple(sorted({server // size for server in group.servers}))
        if len(touched) > 1:
            groups[touched] = groups.get(touched, 0) + group.size_bytes
    pairs: dict[tuple[int, int], int] = {}
    for pair in demand.pairs:
        ends = (pair.source // size, pair.target // size)
        if ends[0] != ends[1]:
            pairs[ends] = pairs.get(ends, 0) + pair.size_bytes
    if not groups:
        groups[tuple(range(tors))] = 1
    return Demand(
        tuple(GroupDemand(servers, size_bytes) for servers, size_bytes in groups.items()),
        tuple(PairDemand(a, b, size_bytes) for (a, b), size_bytes in sorted(pairs.items())),
    )
