"""Matchings: valid, of the greatest weight (against brute force), and repeatable."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import Cluster, Network, Pair
from torch_topoopt.topology.finder.matching import (
    maximum_weight_assignment,
    maximum_weight_matching,
    wire_free_ports,
    wire_matchings,
)
from torch_topoopt.topology.finder.port_allocator import PortAllocator
from torch_topoopt.topology.routing.loads import mean_hops


def _weights(directed: bool) -> st.SearchStrategy[dict[Pair, int]]:
    pairs = [(a, b) for a in range(6) for b in range(6) if (a != b if directed else a < b)]
    return st.dictionaries(st.sampled_from(pairs), st.integers(-2, 12), max_size=12)


def _best(weights: dict[Pair, int], directed: bool) -> tuple[int, tuple[int, int]]:
    """Brute force: the greatest weight, and (size, weight) of the best of the largest matchings."""
    usable = [pair for pair, weight in weights.items() if weight > 0]
    greatest, largest = 0, (0, 0)
    for count in range(len(usable) + 1):
        for chosen in itertools.combinations(usable, count):
            if directed:
                ends = ([a for a, _ in chosen], [b for _, b in chosen])
            else:
                ends = ([s for pair in chosen for s in pair], [])
            if all(len(set(end)) == len(end) for end in ends):
                weight = sum(weights[pair] for pair in chosen)
                greatest = max(greatest, weight)
                largest = max(largest, (count, weight))
    return greatest, largest


@settings(max_examples=60, deadline=None)
@given(weights=_weights(directed=False), seed=st.integers(0, 3))
def test_blossom_finds_a_matching_of_the_greatest_weight(
    weights: dict[Pair, int], seed: int
) -> None:
    matched = maximum_weight_matching(weights, seed=seed)
    servers = [server for pair in matched for server in pair]
    assert len(set(servers)) == len(servers)
    greatest, largest = _best(weights, directed=False)
    assert sum(weights[pair] for pair in matched) == greatest
    matched = maximum_weight_matching(weights, seed=seed, maximum_cardinality=True)
    assert (len(matched), sum(weights[pair] for pair in matched)) == largest


@settings(max_examples=60, deadline=None)
@given(weights=_weights(directed=True), seed=st.integers(0, 3))
def test_assignment_joins_transmitters_and_receivers_at_the_greatest_weight(
    weights: dict[Pair, int], seed: int
) -> None:
    matched = maximum_weight_assignment(weights, seed=seed)
    assert len({a for a, _ in matched}) == len({b for _, b in matched}) == len(matched)
    greatest, largest = _best(weights, directed=True)
    assert sum(weights[pair] for pair in matched) == greatest
    matched = maximum_weight_assignment(weights, seed=seed, maximum_cardinality=True)
    assert (len(matched), sum(weights[pair] for pair in matched)) == largest


@pytest.mark.parametrize("match", [maximum_weight_matching, maximum_weight_assignment])
def test_a_server_is_never_paired_with_itself(match) -> None:  # type: ignore[no-untyped-def]
    assert match({}) == ()
    with refused(ValueError, "server 3", "itself"):
        match({(3, 3): 5})


def _links(wiring: PortAllocator) -> list[Pair]:
    return sorted((link.source, link.target) for link in wiring.links)


def test_a_hot_pair_gets_parallel_cables_until_halving_makes_others_heavier() -> None:
    # 0-1 asks 100 bytes, 0-2 and 1-3 ask 30 each: 100 > 30 + 30, then 50 < 60
    wiring = PortAllocator(Cluster(4, 2, 10.0))
    wire_matchings(wiring, {(0, 1): 60, (1, 0): 40, (0, 2): 30, (1, 3): 30})
    assert _links(wiring) == [(0, 1), (0, 2), (1, 0), (1, 3), (2, 0), (3, 1)]
    wiring = PortAllocator(Cluster(4, 2, 10.0))
    wire_matchings(wiring, {(0, 1): 100, (1, 0): 40, (0, 2): 30, (1, 3): 30})
    assert _links(wiring) == [(0, 1), (0, 1), (1, 0), (1, 0)]


def test_simplex_matching_follows_the_direction_of_the_demand() -> None:
    wiring = PortAllocator(Cluster(3, 1, 10.0, "simplex"))
    wire_matchings(wiring, {(0, 1): 5, (1, 2): 5, (1, 0): 4, (2, 1): 3})
    assert _links(wiring) == [(0, 1), (1, 2)]


@pytest.mark.parametrize("ports", ["duplex", "simplex"])
@pytest.mark.parametrize("servers", [3, 5, 8, 9])
def test_free_ports_are_all_used_when_every_server_has_the_same_number(
    servers: int, ports: str
) -> None:
    wiring = PortAllocator(Cluster(servers, 2, 10.0, ports))  # type: ignore[arg-type]
    wire_free_ports(wiring)
    assert len(wiring.links) == 2 * servers
    assert len(set(_links(wiring))) == 2 * servers  # a simple graph: no parallel links needed


def test_a_server_with_more_free_ports_is_served_before_a_pair_without_a_link() -> None:
    # joining 1 and 2, which have no link, would leave both free ports of server 0 dark
    wiring = PortAllocator(Cluster(5, 4, 10.0))
    for a, b in [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (3, 4)]:
        wiring.connect(a, b)
    assert [wiring.free_transmitters(s) for s in range(5)] == [2, 1, 1, 0, 0]
    wire_free_ports(wiring)
    assert [wiring.free_transmitters(s) for s in range(5)] == [0] * 5


def test_a_tie_goes_to_pairs_without_a_link() -> None:
    for servers in (6, 8, 10, 12):
        wiring = PortAllocator(Cluster(servers, 3, 10.0))
        wiring.add_stride(range(servers), 1)
        wire_matchings(wiring, {(a, b): 7 for a in range(servers) for b in range(servers) if a < b})
        assert len(set(_links(wiring))) == len(wiring.links) == 3 * servers


@pytest.mark.parametrize(("servers", "degree", "bound"), [(64, 4, 3.3), (128, 8, 2.7)])
def test_matchings_of_a_uniform_demand_are_unlike_each_other(
    servers: int, degree: int, bound: float
) -> None:
    # shuffled alike in every round they reach 3.49 and 3.01 mean hops, unshuffled 7.8 and 7.0
    wiring = PortAllocator(Cluster(servers, degree, 10.0))
    wiring.add_stride(range(servers), 1)
    demand = {(a, b): 7 for a in range(servers) for b in range(servers) if a < b}
    wire_matchings(wiring, demand)
    assert mean_hops(Network(tuple(wiring.links), (), ()), servers) < bound
