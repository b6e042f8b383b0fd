"""CoinChangeMod against breadth-first search (Algorithm 4)."""

from __future__ import annotations

import math

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.topology.routing.coin_change import (
    coin_change,
    least_loaded_sequences,
    shortest_last_coins,
    translate,
)
from torch_topoopt.topology.routing.shortest_paths import (
    hop_distances,
    least_loaded_paths,
    neighbours,
)


@st.composite
def _circulants(draw: st.DrawFn) -> tuple[int, list[int]]:
    size = draw(st.integers(2, 60))
    coins = draw(st.lists(st.integers(1, size - 1), min_size=1, max_size=4, unique=True))
    return size, coins


@settings(deadline=None)
@given(circulant=_circulants())
def test_hop_counts_equal_breadth_first_distances(circulant: tuple[int, list[int]]) -> None:
    size, coins = circulant
    if math.gcd(size, *coins) != 1:
        with refused(ValueError, "reach"):
            coin_change(size, coins)
        return
    graph = nx.DiGraph((i, (i + c) % size) for i in range(size) for c in coins)
    distances = nx.single_source_shortest_path_length(graph, 0)
    routes = coin_change(size, coins)
    assert [len(route) for route in routes] == [distances[offset] for offset in range(size)]
    for offset, route in enumerate(routes):
        assert set(route) <= set(coins)
        assert sum(route) % size == offset


def test_a_coin_is_one_hop_and_offset_zero_none() -> None:
    # the printed pseudocode starts coins at distance 0 and leaves offset 0 undefined
    routes = coin_change(12, (1, 5))
    assert routes[0] == ()
    assert routes[1] == (1,)
    assert routes[5] == (5,)
    assert len(routes[6]) == 2


def test_the_two_directions_of_a_stride_are_used_alike() -> None:
    for size in range(5, 80):
        for stride in range(2, (size + 1) // 2):
            routes = coin_change(size, (1, size - 1, stride, size - stride))
            longest = max(map(len, routes))
            for coin in (1, stride):
                uses = [sum(route.count(c) for route in routes) for c in (coin, size - coin)]
                assert abs(uses[0] - uses[1]) <= 2 * longest, (size, stride)


@settings(deadline=None, max_examples=30)
@given(circulant=_circulants(), count=st.integers(2, 5), data=st.data())
def test_least_loaded_sequences_are_the_least_loaded_paths_from_server_0(
    circulant: tuple[int, list[int]], count: int, data: st.DataObject
) -> None:
    size, coins = circulant[0], [1, *circulant[1]]
    load = {coin: float(data.draw(st.integers(0, 5))) for coin in sorted(set(coins))}
    adjacent = {(i, (i + c) % size) for i in range(size) for c in coins}
    of_link = {(a, b): load[(b - a) % size] for a, b in adjacent}
    distance = hop_distances(neighbours(size, adjacent), 0)
    incoming = neighbours(size, {(b, a) for a, b in adjacent})
    last_coins = shortest_last_coins(size, coins)
    for offset in range(1, size):
        ways = least_loaded_sequences(size, last_coins, offset, count, load)
        paths = [translate(way, 0, size) for way in ways]
        assert paths == least_loaded_paths(incoming, distance, offset, count, of_link)


def test_the_longest_way_round_a_large_ring_is_found() -> None:
    last_coins = shortest_last_coins(4000, (1,))
    assert least_loaded_sequences(4000, last_coins, 3999, 2, {1: 0.0}) == [(1,) * 3999]


def test_translation_starts_at_the_source_and_wraps_around() -> None:
    assert translate((5, 5, 1), 4, 12) == (4, 9, 2, 3)


@pytest.mark.parametrize("coin", [0, 12, -1])
def test_a_coin_outside_the_ring_is_refused(coin: int) -> None:
    with refused(ValueError, "coins", coin, "1..11"):
        coin_change(12, (1, coin))
