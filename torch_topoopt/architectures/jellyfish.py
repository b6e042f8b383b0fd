"""Expander of servers: a random regular graph (Jellyfish, Singla et al., NSDI 2012).

As in the TopoOpt paper, section 5.1, the graph joins the ports of the servers themselves. AllReduce
ignores it: its ring follows the servers' numbers, over routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import Topology, Wires, direct

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand

_TRIES = 100


def build(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """A connected random `degree`-regular graph of the servers, chosen by `seed`.

    Where servers x degree is odd, one port stays dark. `demand` changes nothing. Raises
    DocumentError for an invalid cluster, and ValueError if there is no such graph (too many ports).
    """
    wires = Wires.of(cluster)
    for a, b in random_regular(cluster.servers, cluster.degree, seed):
        wires.cable(a, b, cluster.link_gbps)
    return direct("jellyfish", cluster, wires)


def random_regular(servers: int, degree: int, seed: int) -> list[tuple[int, int]]:
    """The cables of a connected random graph, every server with `degree` of them (one with one
    fewer where the number of ports is odd), ascending. Raises ValueError if there is none."""
    import networkx as nx

    if servers > 1 and degree >= servers:
        raise ValueError(
            f"degree: {degree} ports per server cannot reach {servers - 1} others once each; "
            f"use at most {servers - 1}"
        )
    if servers > 2 and degree < 2:
        raise ValueError(f"degree: {degree} cannot connect {servers} servers; use at least 2")
    if servers == 1:
        return []
    degrees = [degree] * servers
    if servers * degree % 2:
        degrees[-1] -= 1
    for attempt in range(_TRIES):
        if servers * degree % 2:
            graph = nx.random_degree_sequence_graph(degrees, seed=seed * _TRIES + attempt, tries=50)
        else:
            graph = nx.random_regular_graph(degree, servers, seed=seed * _TRIES + attempt)
        if nx.is_connected(graph):
            return sorted((min(a, b), max(a, b)) for a, b in graph.edges)
    raise ValueError(
        f"degree: no connected graph of {servers} servers with {degree} ports found in "
        f"{_TRIES} tries; use a higher degree"
    )
