"""Ranks on servers: leaders, routes and rings of ranks."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable

import pytest
from support.refusals import refused

from torch_topoopt.links.rank_layout import (
    RankLayout,
    group_routes,
    leader_rings,
    rank_routes,
    rings_of,
)
from torch_topoopt.plan import Cluster, Demand, Plan, Ring, Route
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.find_network import find_network

RingPlan = Callable[..., Plan]
UNEVEN = RankLayout((0, 0, 1, 2, 2, 2, 3))


def test_ranks_divide_evenly_over_the_servers_or_not_at_all() -> None:
    assert RankLayout.even(3, 6).server_of == (0, 0, 1, 1, 2, 2)
    with refused(DocumentError, 3, 7):
        RankLayout.even(3, 7)
    with refused(DocumentError, 3, 2):
        RankLayout.even(3, 2)


def test_the_lowest_rank_of_a_server_leads_it() -> None:
    assert UNEVEN.leaders == (0, 2, 3, 6)
    assert UNEVEN.ranks_of == ((0, 1), (2,), (3, 4, 5), (6,))
    assert UNEVEN.peers(4) == (3, 5)
    assert [rank for rank in range(7) if UNEVEN.is_leader(rank)] == [0, 2, 3, 6]


def test_routes_lead_through_the_leaders_and_every_pair_has_one(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    routes = {
        (route.servers[0], route.servers[-1]): route.servers
        for rank in range(7)
        for route in rank_routes(plan.network, UNEVEN, rank)
    }
    assert routes[1, 5] == (1, 0, 2, 3, 5)
    assert routes[0, 3] == (0, 2, 3)
    assert routes[1, 2] == (1, 0, 2)
    assert routes[4, 6] == (4, 3, 6)
    leaders_with_links = {(a, b) for a, b in routes if {a, b} in ({0, 2}, {2, 3}, {3, 6}, {0, 6})}
    assert leaders_with_links == set(), "their links are their routes"
    apart = {
        (a, b) for a in range(7) for b in range(7) if UNEVEN.server_of[a] != UNEVEN.server_of[b]
    }
    assert set(routes) == apart - {(0, 2), (2, 3), (3, 6), (6, 0), (2, 0), (3, 2), (6, 3), (0, 6)}


def test_a_rank_knows_all_routes_of_every_pair_that_it_is_on(ring_plan: RingPlan) -> None:
    """The number of a route is its place among those of its pair: it must be equal everywhere."""
    network = ring_plan(5).network
    layout = RankLayout.even(5, 10)
    of_rank = [rank_routes(network, layout, rank) for rank in range(10)]
    everything: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for route in max(of_rank, key=len):
        everything.setdefault((route.servers[0], route.servers[-1]), []).append(route.servers)
    for rank, routes in enumerate(of_rank):
        ways = [route.servers for route in routes]
        for pair in {(way[0], way[-1]) for way in ways} & everything.keys():
            assert [way for way in ways if (way[0], way[-1]) == pair] == everything[pair]
        for way in ways:
            assert rank in way


def test_parallel_links_are_all_used_by_ranks_that_do_not_lead(ring_plan: RingPlan) -> None:
    network = ring_plan(2).network
    twice = dataclasses.replace(network, links=network.links * 2)
    routes = rank_routes(twice, RankLayout.even(2, 4), 0)
    of_pair = [route for route in routes if (route.servers[0], route.servers[-1]) == (1, 3)]
    assert [route.weight for route in of_pair] == [0.5, 0.5]


def test_parallel_links_share_the_bytes_of_a_route(ring_plan: RingPlan) -> None:
    """The k-th copy of a route takes the k-th of its parallel links on every hop, modulo their
    number. The relay and the target number the copies as the source does."""
    network = ring_plan(4).network
    once, twice, thrice = (0, 1), (1, 2), (2, 3)
    numbers = {once: 1, twice: 2, thrice: 3}
    links = [
        link for link in network.links for _ in range(numbers.get((link.source, link.target), 1))
    ]
    way = Route((0, 1, 2, 3), 0.75)
    network = dataclasses.replace(network, links=tuple(links), routes=(way, Route((0, 3), 0.25)))
    for rank in range(4):
        routes = rank_routes(network, RankLayout.even(4, 4), rank)
        of_pair = [r for r in routes if (r.servers[0], r.servers[-1]) == (0, 3)]
        assert of_pair == [*[Route(way.servers, 0.125)] * 6, Route((0, 3), 0.25)]


def test_where_hosts_forward_servers_without_a_link_have_a_route_without_relays(
    ring_plan: RingPlan,
) -> None:
    routes = rank_routes(ring_plan(5).network, RankLayout.even(5, 5), 1, forwarded=True)
    assert {route.servers for route in routes} == {(1, 3), (1, 4), (3, 1), (4, 1)}
    simplex = ring_plan(4, ports="simplex").network
    routes = rank_routes(simplex, RankLayout.even(4, 4), 1, forwarded=True)
    assert {route.servers for route in routes if route.servers[-1] == 0} == {(1, 2, 3, 0)}


def test_routes_of_a_group_join_all_its_pairs(ring_plan: RingPlan) -> None:
    plan = ring_plan(8)
    ends = [route.servers for route in group_routes(plan, [0, 1, 3, 0], forwarded=False)]
    assert {(way[0], way[-1]) for way in ends} == set(itertools.permutations((0, 1, 3), 2))
    assert (1, 2, 3) in ends
    assert group_routes(plan, range(8), forwarded=False) == []


def test_kernels_relay_along_the_heaviest_route(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    both = (Route((0, 1, 2), 0.25), Route((0, 3, 2), 0.75), Route((2, 1, 0), 1.0))
    plan = dataclasses.replace(plan, network=dataclasses.replace(plan.network, routes=both))
    assert group_routes(plan, [0, 2], forwarded=False) == list(both)
    assert group_routes(plan, [0, 2], forwarded=True) == list(both[1:])


def test_rings_over_servers_become_rings_over_the_first_member_of_each() -> None:
    rings = [Ring((0, 2, 3), 0.5), Ring((3, 2, 0), 0.5)]
    assert leader_rings(rings, UNEVEN, [6, 0, 5, 4]) == [Ring((1, 2, 0), 0.5), Ring((0, 2, 1), 0.5)]


def test_a_ring_s_share_follows_its_slowest_link(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    links = [(link.source, link.target) for link in plan.network.links]
    assert [r.share for r in rings_of(plan, [0, 1, 2, 3], dict.fromkeys(links, 4.0))] == [0.5, 0.5]
    rates = {(a, b): 3.0 if b == (a + 1) % 4 else 9.0 for a, b in links}
    shares = [ring.share for ring in rings_of(plan, [0, 1, 2, 3], rates)]
    assert shares == pytest.approx([0.25, 0.75])
    rates[2, 1] = 1.0
    shares = [ring.share for ring in rings_of(plan, [0, 1, 2, 3], rates)]
    assert shares == pytest.approx([0.75, 0.25])
    assert [ring.servers for ring in rings_of(plan, [2], rates)] == [(2,)]


def _python_calls(function: Callable[[], object]) -> int:
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_a_rank_s_tables_take_python_in_proportion_to_the_routes_that_pass_it(
    ring_plan: RingPlan,
) -> None:
    """At 1024 ranks all pairs are a million; a rank that looked at each took 20 s to start."""
    cluster = Cluster(1024, 8, 10.0)
    network = find_network(cluster, Demand((), ()))
    plan = dataclasses.replace(ring_plan(4), cluster=cluster, network=network)
    layout = RankLayout.even(1024, 1024)
    routes = rank_routes(network, layout, 5)
    assert 4000 < len(routes) < 8000
    calls = _python_calls(lambda: rank_routes(network, layout, 5))
    assert calls < 40 * len(routes)
    ranks = list(range(1024))
    rings = rings_of(plan, ranks)
    assert len(rings) == 8
    assert _python_calls(lambda: leader_rings(rings_of(plan, ranks), layout, ranks)) < 20 * 1024
