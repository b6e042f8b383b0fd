"""Packings of trees reach the bound of the slowest cut exactly, by an oracle and by every piece."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from oracles.slowest_cut import bound_by_flows, bound_by_subsets, rate_matrix

from torch_topoopt import _core
from torch_topoopt.plan import Cluster
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand

if TYPE_CHECKING:
    from oracles.slowest_cut import Link

BY_SUBSETS = 10  # servers


def random_links(chooser: random.Random, servers: int) -> list[Link]:
    """One-way rings, cables, parallel links; some links are lost, but no server is cut off."""
    rates = chooser.choice([(1,), (10, 25, 100), range(1, 100), range(900, 1100)])
    links: list[Link] = []
    for _ in range(chooser.randint(1, 4)):
        order = chooser.sample(range(servers), servers)
        cables = chooser.random() < 0.6
        for i in range(servers):
            ends = order[i - 1], order[i]
            rate = chooser.choice(rates)
            links.append((*ends, rate))
            if cables:
                links.append((*reversed(ends), rate))
    for _ in range(chooser.randint(0, 3)):
        fewer = list(links)
        fewer.remove(chooser.choice(links))
        if nx.is_strongly_connected(nx.DiGraph((a, b) for a, b, _ in fewer)):
            links = fewer
    return links


def packed_seconds(servers: int, links: list[Link], origin: int | None = None) -> Fraction:
    """The time of the busiest link of a packing, after a replay of it step by step."""
    group = _core.GraphGroup(servers, links, (), 0.0, 0.0)
    received, shard, steps = group.plan("packing", False, origin)
    origins = range(servers) if origin is None else [origin]
    units: Counter[tuple[int, int]] = Counter()
    parts: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for step in range(steps):
        now = [(to, piece) for to, pieces in enumerate(received) for piece in pieces]
        now = [(to, piece) for to, piece in now if piece[-1] == step]
        for _, (sender, origin, first, end, _) in now:
            assert sender == origin or covers(parts[sender, origin], first, end)
        for to, (sender, origin, first, end, _) in now:
            units[sender, to] += end - first
            parts[to, origin].append((first, end))
    for origin in origins:
        for to in set(range(servers)) - {origin}:
            held = sorted(parts[to, origin])
            assert [first for first, _ in held] == [0, *(end for _, end in held[:-1])]
            assert held[-1][1] == shard
    rates = rate_matrix(servers, links)
    return max(Fraction(number, shard * int(rates[pair])) for pair, number in units.items())


def covers(parts: list[tuple[int, int]], first: int, end: int) -> bool:
    for start, stop in sorted(parts):
        if start <= first < stop:
            first = stop
    return first >= end


@pytest.mark.parametrize("block", range(10))
def test_500_random_graphs_are_packed_to_the_bound_of_the_slowest_cut(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        chooser = random.Random(seed)
        servers = chooser.randint(2, 24)
        links = random_links(chooser, servers)
        bound_of = bound_by_subsets if servers <= BY_SUBSETS else bound_by_flows
        assert packed_seconds(servers, links) == bound_of(rate_matrix(servers, links)), seed


@pytest.mark.parametrize("degree", [4, 8])
@pytest.mark.parametrize("servers", [8, 12, 16, 32, 64])
def test_lost_cables_leave_all_of_the_bound(servers: int, degree: int) -> None:
    cluster = Cluster(servers, degree, 10.0, parallel_links=degree >= servers)
    network = find_network(cluster, default_demand(servers))
    chooser = random.Random(servers * degree)
    links = [(link.source, link.target, 1) for link in network.links]
    for _ in range(2):
        source, target, _ = chooser.choice(links)
        links.remove((source, target, 1))
        links.remove((target, source, 1))
        assert packed_seconds(servers, links) == bound_by_flows(rate_matrix(servers, links))


def test_a_broadcast_uses_every_link_of_its_root() -> None:
    links = [(a, b, 1) for a in range(5) for b in range(5) if a != b]
    assert packed_seconds(5, links, origin=2) == Fraction(1, 4)


def test_the_bound_is_that_of_the_slowest_cut() -> None:
    links = random_links(random.Random(43), 12)
    group = _core.GraphGroup(12, links, (), 0.0, 0.0)
    bound = bound_by_flows(rate_matrix(12, links))
    assert group.candidates("all_gather", 12 << 20).bound_seconds == pytest.approx(
        bound * (1 << 20)
    )
