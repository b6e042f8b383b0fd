"""Xpander (Valadarsky et al., CoNEXT 2016): a random lift of the complete graph of degree + 1.

Every server of the complete graph becomes a meta-node of equally many servers, every cable a random
matching between two meta-nodes. Of several lifts, the one with the smallest second eigenvalue is
used. Servers beyond a multiple of degree + 1 are inserted by the paper's rule for growth: each
replaces degree/2 cables.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.architectures.topology import Topology, Wires, direct

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand

_LIFTS = 8

Edge = tuple[int, int]


def build(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """An expander of the servers, chosen by `seed`; AllReduce in the order of their numbers.

    `demand` changes nothing. Raises DocumentError for an invalid cluster, and ValueError if servers
    is less than degree + 1, or not a multiple of it while the degree is odd.
    """
    wires = Wires.of(cluster)
    servers, degree = cluster.servers, cluster.degree
    whole, rest = divmod(servers, degree + 1)
    if servers > 1 and (whole == 0 or (degree < 2 and servers > 2)):
        raise ValueError(
            f"degree: {degree} does not suit {servers} servers; use 2 to {servers - 1}"
        )
    if rest and degree % 2 and servers > 1:
        raise ValueError(
            f"servers: {servers} is not a multiple of {degree + 1}, as an odd degree of {degree} "
            "needs; use an even degree"
        )
    for a, b in _edges(servers, degree, random.Random(seed)) if servers > 1 else ():
        wires.cable(a, b, cluster.link_gbps)
    return direct("xpander", cluster, wires)


def _edges(servers: int, degree: int, rng: random.Random) -> list[Edge]:
    lifted = servers // (degree + 1) * (degree + 1)
    lifts = [_lift(lifted, degree, rng) for _ in range(_LIFTS)]
    edges = min(lifts, key=lambda edges: second_eigenvalue(lifted, edges))
    for server in range(lifted, servers):
        edges = _insert(server, degree, edges, rng)
    return sorted(edges)


def _lift(servers: int, degree: int, rng: random.Random) -> list[Edge]:
    size = servers // (degree + 1)
    edges = []
    for a, b in combinations(range(degree + 1), 2):
        order = list(range(size))
        rng.shuffle(order)
        edges += [(a * size + i, b * size + j) for i, j in enumerate(order)]
    return edges


def _insert(server: int, degree: int, edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Inserts `server` into degree/2 cables without a common end."""
    rng.shuffle(edges)
    taken: list[Edge] = []
    used: set[int] = set()
    for edge in edges:
        if len(taken) < degree // 2 and used.isdisjoint(edge):
            taken.append(edge)
            used.update(edge)
    kept = [edge for edge in edges if edge not in set(taken)]
    return kept + [(end, server) for edge in taken for end in edge]


def second_eigenvalue(servers: int, edges: list[Edge]) -> float:
    """The second largest absolute eigenvalue of the graph; small means good expansion."""
    matrix = np.zeros((servers, servers))
    for a, b in edges:
        matrix[a, b] += 1
        matrix[b, a] += 1
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
    return float(round(values[-2], 9))
