"""Unions of rings: what the search keeps, how far it gets, and that it counts its own work."""

from __future__ import annotations

import random
from itertools import combinations_with_replacement, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.topology.best.ring_unions import (
    WORK_PER_S,
    anneal_for_pairs,
    random_rings,
    search_rings,
)
from torch_topoopt.topology.measures.figures import moore_bound_hops

Ring = tuple[int, ...]


def links_of(rings: tuple[Ring, ...], *, duplex: bool) -> list[tuple[int, int]]:
    links = [hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    return links + [(b, a) for a, b in links] if duplex else links


@pytest.mark.parametrize(
    ("rings", "duplex", "target"), [(4, False, 3.24), (2, True, 3.54), (4, True, 2.46)]
)
def test_a_hundred_and_twenty_eight_servers_are_closer_than_by_the_papers_strides(
    rings: int, duplex: bool, target: float
) -> None:
    found = search_rings(128, rings, duplex=duplex, seed=0, work=WORK_PER_S)
    assert found.cost / (128 * 127) <= target
    assert found.cost / (128 * 127) >= moore_bound_hops(
        128, rings * (2 if duplex else 1), duplex=duplex
    )
    hops = _core.hop_summary(128, links_of(found.rings, duplex=duplex))
    assert (hops.sum, hops.unreachable) == (found.cost, 0)
    assert len(found.rings) == rings
    assert all(sorted(ring) == list(range(128)) for ring in found.rings)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 40),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 2**70),
    st.integers(0, 2_000_000),
)
def test_every_ring_visits_every_server_and_the_cost_is_that_of_the_rings(
    servers: int, rings: int, duplex: bool, seed: int, work: int
) -> None:
    found = search_rings(servers, rings, duplex=duplex, seed=seed, work=work)
    assert all(sorted(ring) == list(range(servers)) for ring in found.rings)
    assert found.cost == _core.hop_summary(servers, links_of(found.rings, duplex=duplex)).sum
    assert found == search_rings(servers, rings, duplex=duplex, seed=seed, work=work)


@pytest.mark.parametrize("symmetry", [1, 2, 3, 4, 6, 12])
def test_random_rings_are_the_same_from_every_server_a_symmetry_apart(symmetry: int) -> None:
    for ring in random_rings(12, 5, symmetry, random.Random(symmetry)):
        assert sorted(ring) == list(range(12))
        hops = set(zip(ring, (*ring[1:], ring[0]), strict=True))
        by = 12 // symmetry
        assert {((a + by) % 12, (b + by) % 12) for a, b in hops} == hops


def least_cost(servers: int, rings: int, *, duplex: bool) -> int:
    """The least sum of hops over all unions of so many Hamiltonian cycles, by trying them.

    The first is 0, 1, 2 ... without loss of generality; of the second, one of those that become
    each other when all servers move on by one.
    """
    cycles = [(0, *rest) for rest in permutations(range(1, servers))]
    if duplex:
        cycles = [cycle for cycle in cycles if cycle[1] <= cycle[-1]]
    best = servers**3
    natural = links_of((tuple(range(servers)),), duplex=duplex)
    for others in combinations_with_replacement(cycles, rings - 1):
        if others and others[0] != min(turned(others[0], by) for by in range(servers)):
            continue
        total = _core.hop_summary(servers, natural + links_of(others, duplex=duplex)).sum
        best = min(best, total)
    return best


def turned(ring: Ring, by: int) -> Ring:
    moved = [(server + by) % len(ring) for server in ring]
    at = moved.index(0)
    return (*moved[at:], *moved[:at])


@pytest.mark.parametrize(
    ("servers", "rings", "duplex"),
    [(n, d, False) for n in range(2, 8) for d in (1, 2, 3) if d < n and (n, d) != (7, 3)]
    + [(n, r, True) for n in range(3, 8) for r in (1, 2) if 2 * r < n],
)
def test_small_unions_are_the_best_of_all(servers: int, rings: int, duplex: bool) -> None:
    found = search_rings(servers, rings, duplex=duplex, seed=3, work=20_000_000)
    assert found.cost == least_cost(servers, rings, duplex=duplex)


def test_seven_servers_with_three_rings_meet_the_moore_bound() -> None:
    # So there is nothing to enumerate: no digraph of degree 3 on 7 servers has a lower mean.
    found = search_rings(7, 3, duplex=False, seed=0, work=20_000_000)
    assert found.cost == round(moore_bound_hops(7, 3, duplex=False) * 7 * 6)


def test_links_go_where_the_bytes_are() -> None:
    weights = [1] * 64
    for a, b in ((0, 5), (1, 6), (2, 7)):
        weights[8 * a + b] = weights[8 * b + a] = 1000
    found = anneal_for_pairs(
        8, [tuple(range(8))], [(3, 4), (0, -1)], weights, duplex=True, seed=1, work=40_000_000
    )
    joined = {frozenset(hop) for hop in links_of(found.rings, duplex=True)}
    assert {frozenset(pair) for pair in ((0, 5), (1, 6), (2, 7))} <= joined


@pytest.mark.parametrize(
    ("servers", "rings", "work", "tokens"),
    [
        (1, 1, 0, ("servers", 1, 2)),
        (4, 0, 0, ("rings", 0, 1)),
        (4, 1, -1, ("work", -1)),
    ],
)
def test_arguments_out_of_range_are_named(
    servers: int, rings: int, work: int, tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        search_rings(servers, rings, duplex=True, seed=0, work=work)
