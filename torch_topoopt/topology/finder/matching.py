"""Maximum-weight matchings for the model-parallel sub-topology (paper section 4.2, step 3).

A duplex cable serves both directions of a pair of servers, so a round of Algorithm 1 (line 14) is a
maximum-weight matching of an undirected graph (Blossom). A simplex link joins one transmitter to
one receiver, and a server owns both, so the same round is a maximum-weight assignment of
transmitters to receivers: the matching of the bipartite graph of the two.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from torch_topoopt.topology.routing.load_checks import validate_matching

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.plan import Pair
    from torch_topoopt.topology.finder.port_allocator import PortAllocator


def maximum_weight_matching(
    weights: Mapping[Pair, int], *, seed: int = 0, maximum_cardinality: bool = False
) -> tuple[Pair, ...]:
    """Disjoint undirected pairs (a, b), a < b, of the greatest total weight, sorted.

    `weights` maps pairs to integers, so that the result is exact; pairs of weight 0 or less are
    never chosen. With `maximum_cardinality` the greatest weight among the largest matchings.
    Which of several best matchings comes back depends on `seed` alone.

    Raises ValueError for a pair of a server with itself.
    """
    positive = _positive(weights)
    graph = nx.Graph()
    graph.add_nodes_from(_shuffled({server for pair in positive for server in pair}, seed))
    graph.add_weighted_edges_from((a, b, weight) for (a, b), weight in positive.items())
    matched = nx.max_weight_matching(graph, maxcardinality=maximum_cardinality)
    return tuple(sorted((min(pair), max(pair)) for pair in matched))


def maximum_weight_assignment(
    weights: Mapping[Pair, int], *, seed: int = 0, maximum_cardinality: bool = False
) -> tuple[Pair, ...]:
    """Directed pairs (source, target) of the greatest total weight, sorted.

    Each server is a source at most once and a target at most once. Pairs of weight 0 or less are
    never chosen. With `maximum_cardinality` the greatest weight among the largest assignments.
    Weights up to 2^53 in sum are exact. Which of several best assignments comes back depends on
    `seed` alone.

    Raises ValueError for a pair of a server with itself.
    """
    positive = _positive(weights)
    if not positive:
        return ()
    sources = _shuffled({source for source, _ in positive}, seed)
    targets = _shuffled({target for _, target in positive}, seed + 1)
    row = {server: i for i, server in enumerate(sources)}
    column = {server: i for i, server in enumerate(targets)}
    bonus = sum(positive.values()) if maximum_cardinality else 0
    matrix = np.zeros((len(sources), len(targets)))
    for (source, target), weight in positive.items():
        matrix[row[source], column[target]] = weight + bonus
    from scipy.optimize import linear_sum_assignment  # which takes longer to import than most plans

    rows, columns = linear_sum_assignment(matrix, maximize=True)
    pairs = ((sources[i], targets[j]) for i, j in zip(rows, columns, strict=True))
    return tuple(sorted(pair for pair in pairs if pair in positive))


def _positive(weights: Mapping[Pair, int]) -> dict[Pair, int]:
    for source, target in weights:
        if source == target:
            raise ValueError(f"weights: server {source} is paired with itself")
    return {pair: weight for pair, weight in sorted(weights.items()) if weight > 0}


def _shuffled(servers: set[int], seed: int) -> list[int]:
    order = sorted(servers)
    random.Random(seed).shuffle(order)
    return order


class _Rounds:
    """Repeated matchings on the free ports of a wiring.

    Ties between pairs of equal weight go to pairs without a link yet, and then to a shuffled order
    of the servers, a new one every round: under a uniform demand the lowest numbers first would
    put all matchings beside the ring of stride 1 (mean 15.7 hops at n = 128, d = 4, against 3.8).
    """

    def __init__(self, wiring: PortAllocator) -> None:
        self.wiring = wiring
        self.rounds = 0

    def wire(self, weights: Mapping[Pair, int], *, maximum_cardinality: bool) -> tuple[Pair, ...]:
        """Wires and returns one matching of the pairs in `weights` that have free ports."""
        wiring = self.wiring
        linked = {(link.source, link.target) for link in wiring.links}
        scale = 2 * wiring.cluster.servers  # so that no sum of preferences outweighs one byte
        available = {
            (a, b): weight * scale + ((a, b) not in linked)
            for (a, b), weight in weights.items()
            if weight > 0 and wiring.free_transmitters(a) and wiring.free_receivers(b)
        }
        match = maximum_weight_matching if wiring.duplex else maximum_weight_assignment
        matched = match(available, seed=self.rounds, maximum_cardinality=maximum_cardinality)
        validate_matching(matched, directed=not wiring.duplex)
        for source, target in matched:
            wiring.connect(source, target)
        self.rounds += 1
        return matched


def wire_matchings(wiring: PortAllocator, demand: Mapping[Pair, int]) -> None:
    """Rounds of matching on what ports are left, halving what was linked (Algorithm 1, 13-17).

    `demand[source, target]` is in bytes. Each round wires one matching and divides the weight of
    its pairs by two, until no pair with demand has a free port at both ends: a hot pair may get
    parallel links, with a diminishing return. On duplex the bytes of both directions are added,
    for a cable serves both. Halving is exact: weights start scaled by 2^degree.
    """
    degree = wiring.cluster.degree
    weights: dict[Pair, int] = {}
    for (source, target), size_bytes in sorted(demand.items()):
        pair = (min(source, target), max(source, target)) if wiring.duplex else (source, target)
        weights[pair] = weights.get(pair, 0) + (size_bytes << degree)
    rounds = _Rounds(wiring)
    while matched := rounds.wire(weights, maximum_cardinality=False):
        for pair in matched:
            weights[pair] >>= 1


def wire_free_ports(wiring: PortAllocator) -> None:
    """Wires ports that no demand asks for, by the same rounds over a uniform demand.

    A round takes as many pairs as it can, servers with the most free ports first, so that no port
    stays dark that another server's free port could be joined to; then pairs with the fewest links
    (a uniform demand, halved once per link that exists). One server's last free ports stay unused.
    """
    degree = wiring.cluster.degree
    rounds = _Rounds(wiring)
    matched: tuple[Pair, ...] | None = None
    while matched is None or matched:
        links = Counter((link.source, link.target) for link in wiring.links)
        sources = [s for s in range(wiring.cluster.servers) if wiring.free_transmitters(s)]
        targets = [s for s in range(wiring.cluster.servers) if wiring.free_receivers(s)]
        weights = {
            (a, b): ((wiring.free_transmitters(a) + wiring.free_receivers(b)) << degree + 1)
            + ((1 << degree) >> links[a, b])
            for a in sources
            for b in targets
            if (a < b if wiring.duplex else a != b)
        }
        matched = rounds.wire(weights, maximum_cardinality=True)
