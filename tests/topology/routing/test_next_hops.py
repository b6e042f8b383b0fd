"""Forwarding tables: shortest ways, over the links with the least load."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import RouteTable
from torch_topoopt.plan.route_checks import validate_routes
from torch_topoopt.topology.routing.next_hops import least_loaded_next_hops


@settings(deadline=None, max_examples=30)
@given(
    servers=st.integers(2, 20),
    chords=st.sets(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=15),
)
def test_every_walk_is_a_shortest_path(servers: int, chords: set[tuple[int, int]]) -> None:
    links = {(s, (s + 1) % servers) for s in range(servers)} | {
        (a % servers, b % servers) for a, b in chords
    }
    load = {(a, b): float((7 * a + 3 * b) % 5) for a, b in links if a != b}
    table = RouteTable(servers, next_hops=least_loaded_next_hops(servers, load))
    validate_routes(table, load.keys(), servers)
    graph = nx.DiGraph(list(load))
    for source in range(servers):
        for target in set(range(servers)) - {source}:
            ways = table.of_pair(source, target)
            hops = len(ways[0].servers) - 1 if ways else 1
            assert hops == nx.shortest_path_length(graph, source, target)


def test_the_whole_way_counts_and_not_the_next_link_alone() -> None:
    # 0 to 3 over 1 or 2; the first link of the way over 1 is free, the second is not
    load = {(0, 1): 0.0, (1, 3): 9.0, (0, 2): 1.0, (2, 3): 2.0, (3, 0): 0.0}
    assert least_loaded_next_hops(4, load)[0][3] == 2
    assert least_loaded_next_hops(4, load | {(1, 3): 0.0})[0][3] == 1


def test_ways_to_different_targets_spread_over_equal_links() -> None:
    # two relays lead from the left half to the right half; each carries about half of the pairs
    left, right = range(2, 6), range(6, 10)
    load = {pair: 0.0 for s in (*left, *right) for r in (0, 1) for pair in ((s, r), (r, s))}
    table = least_loaded_next_hops(10, load)
    over_0 = sum(table[s][t] == 0 for s in left for t in right)
    assert over_0 == 8
    assert {table[s][t] for s in left for t in right} == {0, 1}


def test_servers_without_a_way_are_an_error() -> None:
    with refused(ValueError, "server 1", "server 0"):
        least_loaded_next_hops(2, {(0, 1): 0.0})
