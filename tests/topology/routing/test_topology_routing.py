"""The route of each kind of pair, on circulant and on other networks."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.plan import Cluster, Group, Link, Ring, Route
from torch_topoopt.topology.finder.port_allocator import PortAllocator
from torch_topoopt.topology.routing.routes import (
    all_hop_distances,
    circulant_offsets,
    plan_routes,
    ring_pair_bytes,
)


def ring_of_eight(*chords: tuple[int, int]) -> list[Link]:
    wiring = PortAllocator(Cluster(8, 4, 1.0))
    wiring.add_stride(range(8), 1)
    for a, b in chords:
        wiring.connect(a, b)
    return wiring.links


def by_pair(routes: tuple[Route, ...]) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    table: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for route in routes:
        table.setdefault((route.servers[0], route.servers[-1]), []).append(route.servers)
    return table


def test_a_network_is_circulant_only_if_all_servers_have_the_same_offsets() -> None:
    links = ring_of_eight()
    assert circulant_offsets(8, {(x.source, x.target) for x in links}) == (1, 7)
    links = ring_of_eight((0, 4))
    assert circulant_offsets(8, {(x.source, x.target) for x in links}) == ()


@pytest.mark.parametrize("chords", [(), ((0, 4),)])
def test_distances_are_the_same_by_translation_and_by_search(
    chords: tuple[tuple[int, int], ...],
) -> None:
    distances = all_hop_distances(8, ring_of_eight(*chords))
    assert distances[6] == [2, 3, 4, 3, 2, 1, 0, 1]
    assert distances[0][4] == (1 if chords else 4)
    assert distances[5][0] == (2 if chords else 3)


def test_on_a_circulant_network_routes_of_one_offset_are_translations() -> None:
    table = by_pair(plan_routes(8, ring_of_eight(), {}, {}))
    assert len(table) == 8 * 5
    for source in range(8):
        for offset in range(2, 7):
            (first,) = table[0, offset]
            (route,) = table[source, (source + offset) % 8]
            assert route == tuple((server + source) % 8 for server in first)


def test_a_pair_with_demand_is_spread_over_its_equally_short_paths() -> None:
    for chords in ((), ((0, 4),)):
        routes = plan_routes(8, ring_of_eight(*chords), {}, {(2, 6): 100.0})
        spread = [r for r in routes if (r.servers[0], r.servers[-1]) == (2, 6)]
        both_ways = {(2, 3, 4, 5, 6), (2, 1, 0, 7, 6)}
        assert {route.servers for route in spread} == both_ways
        assert [route.weight for route in spread] == [0.5, 0.5]
    one = plan_routes(8, ring_of_eight(), {}, {(2, 6): 100.0}, paths=1)
    assert len(one) == 8 * 5


def test_ring_neighbours_without_a_link_follow_the_coins_unless_a_link_is_shorter() -> None:
    ring_bytes = {(0, 2): 9.0, (0, 3): 5.0}
    routes = by_pair(plan_routes(8, ring_of_eight((0, 4)), ring_bytes, {}, coins=(1, 7)))
    assert routes[0, 2] == [(0, 1, 2)]
    assert routes[0, 3] == [(0, 4, 3)]


def test_other_pairs_avoid_the_links_that_demand_loads() -> None:
    # 1 and 5 are four hops apart round the ring either way, or three across the cable 0-4
    busy = {(1, 0): 10.0**6}
    links = ring_of_eight((0, 4), (2, 6))
    assert by_pair(plan_routes(8, links, {}, busy))[1, 5] == [(1, 2, 6, 5)]
    busy = {(2, 6): 10.0**6}
    assert by_pair(plan_routes(8, links, {}, busy))[1, 5] == [(1, 0, 4, 5)]


def test_ring_bytes_add_up_over_rings_and_groups() -> None:
    groups = (
        Group((0, 1, 2, 3), (Ring((0, 1, 2, 3), 0.75), Ring((0, 3, 2, 1), 0.25))),
        Group((0, 1), (Ring((0, 1), 1.0),)),
    )
    sizes = {frozenset((0, 1, 2, 3)): 16, frozenset((0, 1)): 5}
    sent = ring_pair_bytes(groups, sizes)
    assert sent[0, 1] == 2 * 3 / 4 * 0.75 * 16 + 5
    assert sent[1, 0] == 2 * 3 / 4 * 0.25 * 16 + 5
    assert sent[1, 2] == 18
    assert sum(sent.values()) == 2 * 3 * 16 + 2 * 1 * 5


def test_no_paths_asked_for_is_an_error() -> None:
    with refused(ValueError, "paths", 0, 1):
        plan_routes(8, ring_of_eight(), {}, {}, paths=0)


def test_a_network_in_two_parts_is_an_error() -> None:
    links = [Link(0, 0, 1, 0), Link(1, 0, 0, 0), Link(2, 0, 3, 0), Link(3, 0, 2, 0)]
    with refused(ValueError, "server 2", "server 0"):
        plan_routes(4, links, {}, {})
