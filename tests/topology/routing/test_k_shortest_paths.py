"""Yen's algorithm against all loop-free paths, and on networks with few of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import adjacency, random_capacity, simple_paths
from support.refusals import refused

from torch_topoopt.topology.routing.k_shortest_paths import k_shortest_paths


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(0, 12), st.integers(0, 10**6), st.integers(1, 40))
def test_they_are_the_first_of_all_loop_free_paths(
    servers: int, extra: int, seed: int, count: int
) -> None:
    table, incoming = adjacency(random_capacity(servers, extra, seed))
    target = 1 + seed % (servers - 1)
    expected = simple_paths(table, 0, target)[:count]
    assert k_shortest_paths(table, incoming, 0, target, count) == expected


def test_a_ring_has_two_ways_however_many_are_asked_for() -> None:
    table = [sorted(((s - 1) % 8, (s + 1) % 8)) for s in range(8)]
    assert k_shortest_paths(table, table, 1, 3, 5) == [(1, 2, 3), (1, 0, 7, 6, 5, 4, 3)]


def test_bad_arguments_are_named() -> None:
    table, incoming = [[1], [0], []], [[1], [0], []]
    with refused(ValueError, "count", 0, 1):
        k_shortest_paths(table, incoming, 0, 1, 0)
    with refused(ValueError, "target", "server 0"):
        k_shortest_paths(table, incoming, 0, 0, 1)
    with refused(ValueError, "server 2", "server 0"):
        k_shortest_paths(table, incoming, 0, 2, 1)
