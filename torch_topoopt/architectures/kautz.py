"""Generalised Kautz and de Bruijn graphs (Imase and Itoh, 1981 and 1983) on the servers' own ports.

With k links out of every server the longest of all shortest routes has at most ceil(log_k n) hops,
for any number n of servers. On simplex ports k is the degree; on duplex ports every link of the
graph is a cable, so k is half the degree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import NodeLink, Wires, direct
from torch_topoopt.topology.best.kautz_rings import kautz_links

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.plan import Cluster, Demand


def build(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """Server i has links to -k i - a mod n, for a = 1..k; AllReduce in the order of numbers.

    Links to itself are left out. `demand` and `seed` change nothing. Raises DocumentError for an
    invalid cluster, and ValueError for a degree that gives a server one link only: then the graph
    falls into pairs (Kautz) or lone servers (de Bruijn).
    """
    arcs = kautz_links(cluster.servers, out_degree(cluster, "kautz"))
    return _of_arcs("kautz", cluster, arcs)


def build_de_bruijn(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """Server i has links to k i + a mod n, for a = 0..k - 1; the rest as for Kautz graphs."""
    k = out_degree(cluster, "de-bruijn")
    n = cluster.servers
    arcs = [(i, (k * i + a) % n) for i in range(n) for a in range(k)]
    return _of_arcs("de-bruijn", cluster, arcs)


def out_degree(cluster: Cluster, name: str) -> int:
    """k: links out of every server; raises ValueError where the graph would fall apart."""
    cluster.validate(any_degree=True)
    duplex = cluster.ports == "duplex"
    k = cluster.degree // 2 if duplex else cluster.degree
    if k < 2 < cluster.servers:
        least = "4 (2 with simplex ports)" if duplex else "2"
        raise ValueError(
            f"degree: {cluster.degree} is too small for a {name} network of {cluster.servers} "
            f"servers on {cluster.ports} ports: with fewer than 2 links out of every server it "
            f"falls apart; use at least {least}"
        )
    return k


def _of_arcs(name: str, cluster: Cluster, arcs: list[tuple[int, int]]) -> Topology:
    wires = Wires.of(cluster)
    duplex = cluster.ports == "duplex"
    arcs = [(a, b) for a, b in arcs if a != b]
    if cluster.servers == 2 and not arcs:
        arcs = [(0, 1)] if duplex else [(0, 1), (1, 0)]
    for a, b in arcs:
        if duplex:
            wires.cable(a, b, cluster.link_gbps)
        else:
            wires.links.append(NodeLink(a, b, cluster.link_gbps, cluster.link_latency_s))
    return direct(name, cluster, wires, duplex=duplex)
