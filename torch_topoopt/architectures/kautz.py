"""Generalised Kautz and de Bruijn graphs (Imase and Itoh, 1981 and 1983) on the servers' own ports.

With k links out of every server the longest of all shortest routes has at most ceil(log_k n) hops,
for any number n of servers. On simplex ports k is the degree; on duplex ports every link of the
graph is a cable, so k is half the degree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import NodeLink, Topology, Wires, rank_order

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand


def build(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """Server i has links to -k i - a mod n, for a = 1..k; AllReduce in the order of numbers.

    Links to itself are left out. `demand` and `seed` change nothing. Raises DocumentError for an
    invalid cluster, or for a degree so small that the graph falls apart.
    """
    k = out_degree(cluster)
    n = cluster.servers
    arcs = [(i, (-k * i - a) % n) for i in range(n) for a in range(1, k + 1)]
    return _of_arcs("kautz", cluster, arcs)


def build_de_bruijn(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """Server i has links to k i + a mod n, for a = 0..k - 1; the rest as for Kautz graphs."""
    k = out_degree(cluster)
    n = cluster.servers
    arcs = [(i, (k * i + a) % n) for i in range(n) for a in range(k)]
    return _of_arcs("de-bruijn", cluster, arcs)


def out_degree(cluster: Cluster) -> int:
    """k: links out of every server; raises DocumentError for an invalid cluster."""
    cluster.validate(any_degree=True)
    return cluster.degree if cluster.ports == "simplex" else max(1, cluster.degree // 2)


def _of_arcs(name: str, cluster: Cluster, arcs: list[tuple[int, int]]) -> Topology:
    arcs = [(a, b) for a, b in arcs if a != b]
    wires = Wires(cluster.link_latency_s)
    duplex = cluster.ports == "duplex"
    if duplex and cluster.degree == 1:  # one cable is all that a server can have
        arcs = [(0, 1)] if cluster.servers == 2 else arcs
    for a, b in arcs:
        if duplex:
            wires.cable(a, b, cluster.link_gbps)
        else:
            wires.links.append(NodeLink(a, b, cluster.link_gbps, cluster.link_latency_s))
    return Topology(
        architecture=name,
        servers=cluster.servers,
        nodes=cluster.servers,
        links=tuple(wires.links),
        rings=rank_order(cluster.servers, both_ways=True),
        server_ports=cluster.degree,
        duplex=duplex,
    ).validate()
