"""Loads of pairs against all of their shortest paths, walked one by one in fractions."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.architectures.routing import Routes
from torch_topoopt.architectures.topology import NodeLink, NodePath, Topology

NODES = 9


def random_topology(seed: int) -> Topology:
    """Servers that are all on a cycle, with random links across it, of unequal rates."""
    chance = random.Random(seed)
    hops = [(server, (server + 1) % NODES) for server in range(NODES)]
    others = [(a, b) for a in range(NODES) for b in range(NODES) if (b - a) % NODES > 1]
    hops += chance.sample(others, 14)
    links = tuple(
        NodeLink(a, b, float(chance.choice([10, 20, 50])), chance.choice([1e-6, 3e-6]))
        for a, b in hops
    )
    return Topology("random", NODES, NODES, links, rings=(), server_ports=NODES)


def parts_by_walking(
    topology: Topology, source: int, target: int
) -> dict[tuple[int, int], Fraction]:
    """The part of what `source` sends that each link carries, where nodes split by rates."""
    graph = nx.DiGraph([(link.source, link.target, {"gbps": link.gbps}) for link in topology.links])
    paths = list(nx.all_shortest_paths(graph, source, target))
    leads = {hop for path in paths for hop in pairwise(path)}
    rate_of = {hop: Fraction(graph.edges[hop]["gbps"]) for hop in leads}
    total = {a: sum(rate for (start, _), rate in rate_of.items() if start == a) for a, _ in leads}
    parts: dict[tuple[int, int], Fraction] = {}
    for path in paths:
        hops = list(pairwise(path))
        part = Fraction(1)
        for hop in hops:
            part *= rate_of[hop] / total[hop[0]]
        for hop in hops:
            parts[hop] = parts.get(hop, Fraction(0)) + part
    return parts


@pytest.mark.parametrize("seed", range(4))
def test_every_pair_loads_its_shortest_paths_by_their_rates(seed: int) -> None:
    topology = random_topology(seed)
    routes = Routes(topology)
    pairs = [(a, b) for a in range(NODES) for b in range(NODES) if a != b]
    found = routes.loads(pairs)
    latency = {(link.source, link.target): link.latency_s for link in topology.links}
    graph = nx.DiGraph(list(latency))
    for i, pair in enumerate(pairs):
        assert (found.source[i], found.target[i]) == pair
        span = slice(found.begin[i], found.begin[i + 1])
        expected = {
            routes.index[hop]: part for hop, part in parts_by_walking(topology, *pair).items()
        }
        assert found.edge[span].tolist() == sorted(expected)
        assert found.load[span] == pytest.approx([float(expected[e]) for e in sorted(expected)])
        slowest = max(
            sum(latency[hop] for hop in pairwise(path))
            for path in nx.all_shortest_paths(graph, *pair)
        )
        assert found.latency_s[i] == pytest.approx(slowest)


def test_pairs_with_paths_of_their_own_stand_among_those_that_spread() -> None:
    spread = random_topology(0)
    way = tuple(range(NODES))
    pairs = [(0, 3), (0, NODES - 1), (2, 5), (5, 1)]
    listed = Routes(replace(spread, paths=(NodePath(way, 1.0),)))
    found, without = listed.loads(pairs), Routes(spread).loads(pairs)
    assert list(zip(found.source, found.target, strict=True)) == pairs
    for i, (source, target) in enumerate(pairs):
        edges = found.edge[found.begin[i] : found.begin[i + 1]].tolist()
        if (source, target) == (0, NODES - 1):
            assert edges == sorted(listed.index[hop] for hop in pairwise(way))
        else:
            assert edges == without.edge[without.begin[i] : without.begin[i + 1]].tolist()


@pytest.mark.parametrize(
    ("sources", "targets", "latency_s", "tokens"),
    [
        ([1], [0], [0.0], ("pairs", "node 1", "node 0")),
        ([0], [2], [0.0], ("pairs", "node 2", "0..1")),
        ([0], [1], [0.0, 0.0], ("latency_s", 2, 1)),
        ([0], [1], [-1.0], ("latency_s", 0)),
        ([0, 1], [1], [0.0], ("pairs", "lengths")),
    ],
)
def test_wrong_arguments_are_named(
    sources: list[int], targets: list[int], latency_s: list[float], tokens: tuple[object, ...]
) -> None:
    paths = _core.ShortestPathLoads(2, [0], [1], [1.0])
    with refused(ValueError, *tokens):
        paths.of_each_pair(sources, targets, latency_s)
