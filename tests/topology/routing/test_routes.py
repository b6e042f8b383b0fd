"""Route tables: the rules stand for exactly the routes that a list would hold."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import Cluster, Demand, Link, Network, Plan, Route, RouteTable, StrideRoute
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.route_checks import validate_routes
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Sequence


def ring_links(servers: int) -> set[tuple[int, int]]:
    return {(s, (s + c) % servers) for s in range(servers) for c in (1, servers - 1)}


def ring_table(servers: int, **changes: object) -> RouteTable:
    """The shorter way round, both ways where they are equal."""
    rules = []
    for offset in range(2, servers - 1):
        ahead, back = (1,) * offset, (servers - 1,) * (servers - offset)
        ways = [way for way in (ahead, back) if 2 * len(way) <= servers]
        rules += [StrideRoute(way, 1 / len(ways)) for way in ways]
    return dataclasses.replace(RouteTable(servers, tuple(rules)), **changes)


def forwarding_table(servers: int) -> tuple[tuple[int, ...], ...]:
    """Next hops on a ring with the cable 0-3 added: round the ring, but from 0 to 3 directly."""
    rows = [
        [
            t if s == t else (s + 1) % servers if (t - s) % servers <= servers // 2 else s - 1
            for t in range(servers)
        ]
        for s in range(servers)
    ]
    rows = [[hop % servers for hop in row] for row in rows]
    rows[0][3], rows[3][0] = 3, 0
    return tuple(map(tuple, rows))


@settings(max_examples=20, deadline=None)
@given(
    servers=st.integers(5, 12),
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6, unique=True),
)
def test_a_table_is_the_sequence_of_its_routes(
    servers: int, pairs: Sequence[tuple[int, int]]
) -> None:
    listed = tuple(
        Route(tuple(s % servers for s in range(a, (b if b > a else b + servers) + 1)), 1.0)
        for a, b in pairs
        if a != b
    )
    plain = dict(ring_table(servers).offset_routes)
    table = ring_table(servers, listed=listed)
    routes = list(table)
    assert len(table) == len(routes)
    assert [table[i] for i in range(len(routes))] == routes
    assert table[-1] == routes[-1]
    assert table[1:3] == tuple(routes[1:3])
    assert [(r.servers[0], r.servers[-1]) for r in routes] == sorted(
        (r.servers[0], r.servers[-1]) for r in routes
    )
    ends = {(r.servers[0], r.servers[-1]) for r in listed}
    expected = sum(len(plain[(b - a) % servers]) for a in range(servers) for b in range(servers)
                   if (a, b) not in ends and (b - a) % servers in plain)  # fmt: skip
    assert len(routes) == expected + len(listed)
    validate_routes(table, ring_links(servers), servers)
    validate_routes(tuple(routes), ring_links(servers), servers)
    with pytest.raises(IndexError):
        table[len(routes)]


def test_a_forwarding_table_gives_the_walks_it_leads_to() -> None:
    table = RouteTable(6, next_hops=forwarding_table(6), listed=(Route((0, 5, 4), 1.0),))
    adjacent = ring_links(6) | {(0, 3), (3, 0)}
    validate_routes(table, adjacent, 6)
    assert table.of_pair(1, 4) == (Route((1, 2, 3, 4), 1.0),)
    assert table.of_pair(0, 3) == (), "a pair with a link needs none"
    assert table.of_pair(0, 4) == (Route((0, 5, 4), 1.0),)
    assert len(table) == len(list(table)) == 30 - len(adjacent)
    assert all(hop in adjacent for route in table for hop in pairwise(route.servers))


@pytest.mark.parametrize(
    "table",
    [
        ring_table(9, listed=(Route((0, 1, 2), 0.5), Route((0, 8, 7, 6, 5, 4, 3, 2), 0.5))),
        RouteTable(6, next_hops=forwarding_table(6), listed=(Route((0, 5, 4), 1.0),)),
        RouteTable(6, (StrideRoute((1, 1), 1.0),), forwarding_table(6), (Route((0, 5, 4), 1.0),)),
    ],
)
def test_the_routes_through_a_server_are_all_routes_of_the_pairs_that_one_of_them_passes(
    table: RouteTable,
) -> None:
    links = tuple(Link(a, 0, b, 0) for a, b in ring_links(table.servers))
    for server in range(table.servers):
        pairs = {(r.servers[0], r.servers[-1]) for r in table if server in r.servers}
        expected = {pair: table.of_pair(*pair) for pair in pairs}
        assert Network(links, (), table).routes_through(server) == expected
        assert Network(links, (), tuple(table)).routes_through(server) == expected


@pytest.mark.parametrize(("servers", "degree"), [(12, 4), (9, 2)])
def test_routes_by_pair_is_the_same_from_a_table_and_from_a_list(servers: int, degree: int) -> None:
    network = find_network(Cluster(servers, degree, 1.0), Demand((), ()))
    assert isinstance(network.routes, RouteTable)
    listed = (Route((2, 1, 0), 0.25), Route((2, 3, 4, 5, 6, 7, 8, *range(9, servers), 0), 0.75))
    table = dataclasses.replace(network.routes, listed=listed)
    validate_routes(table, {(x.source, x.target) for x in network.links}, servers)
    by_pair = Network(network.links, network.groups, table).routes_by_pair()
    plain = Network(network.links, network.groups, tuple(table)).routes_by_pair()
    assert by_pair[2, 0] == listed
    assert dict(by_pair) == dict(plain)
    assert len(by_pair) == servers * (servers - 1)
    assert not {(0, 0), (0, servers)} & by_pair.keys()
    with pytest.raises(KeyError):
        by_pair[0, 0]


def test_a_plan_with_a_table_is_read_as_it_was_written_and_a_list_still_is() -> None:
    cluster, demand = Cluster(12, 4, 1.0), Demand((), ())
    network = find_network(cluster, demand)
    plan = Plan.of_network(cluster, network, demand, model="m")
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    assert sum('"strides"' in line for line in text.splitlines()) == 12 - 1 - 4
    old = dataclasses.replace(plan, network=dataclasses.replace(network, routes=(*network.routes,)))
    read = Plan.from_json(old.to_json())
    assert read == old
    assert tuple(read.network.routes) == tuple(plan.network.routes)


@pytest.mark.parametrize(
    ("table", "tokens"),
    [
        (ring_table(7), ("network.routes.servers", 7, 8)),
        (ring_table(8, by_offset=(StrideRoute((1, 2), 1.0),)), ("by_offset[0].strides",)),
        (ring_table(8, by_offset=(StrideRoute((1, 7), 1.0),)), ("twice",)),
        (ring_table(8, by_offset=(StrideRoute((), 1.0),)), ("route", "destination")),
        (ring_table(8, by_offset=(StrideRoute((1, 1), 0.0),)), ("[0].weight", 0.0, 0)),
        (ring_table(8, by_offset=(StrideRoute((1, 1), 0.5),)), (2, 0.5, 1)),
        (ring_table(8, by_offset=(StrideRoute((1, 1), 1.0),)), ("link", "route")),
        (ring_table(8, listed=(Route((0, 2), 1.0),)), ("routes.listed[0]", "link")),
        (ring_table(8, next_hops=((0,),)), ("by_offset", "next_hops")),
        (RouteTable(8, next_hops=((0,),)), ("next_hops", 8)),
        (RouteTable(8, next_hops=((9,) * 8,) * 8), ("0..7",)),
        (RouteTable(8, next_hops=((2,) * 8,) * 8), ("[0][0]", "link")),
        (
            RouteTable(8, next_hops=tuple((s,) * 8 for s in range(8))),
            ("[0][1]", "server 0", 0),
        ),
        (
            RouteTable(
                8,
                next_hops=tuple(
                    tuple(s if s == t else (s + 1) % 8 if s != 4 else 3 for t in range(8))
                    for s in range(8)
                ),
            ),
            ("server 0", 5, "loop"),
        ),
    ],
)  # fmt: skip
def test_a_table_that_breaks_a_rule_is_refused(
    table: RouteTable, tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, *tokens):
        validate_routes(table, ring_links(8), 8)


def test_a_wrong_field_of_a_table_is_named_by_its_path() -> None:
    cluster, demand = Cluster(12, 4, 1.0), Demand((), ())
    text = Plan.of_network(cluster, find_network(cluster, demand), demand, model="m").to_json()
    wrong = re.sub(r'"strides": \[\d+,', '"strides": ["x",', text, count=1)
    with refused(DocumentError, "network.routes.by_offset[0].strides[0]"):
        Plan.from_json(wrong)
