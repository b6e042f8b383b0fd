"""Hop counts in C++ against the breadth-first search in Python and against closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import Link
from torch_topoopt.topology.measures.figures import moore_bound_hops
from torch_topoopt.topology.routing.hop_counts import hop_matrix, hop_summary
from torch_topoopt.topology.routing.shortest_paths import hop_distances, neighbours


def links_of(pairs: list[tuple[int, int]]) -> list[Link]:
    return [Link(a, 0, b, 0) for a, b in pairs]


@st.composite
def digraphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Servers (up to five words of sources) and links, some parallel, not always connected."""
    servers = draw(st.one_of(st.integers(1, 12), st.sampled_from([63, 64, 65, 127, 129, 300])))
    server = st.integers(0, servers - 1)
    pairs = draw(st.lists(st.tuples(server, server), max_size=min(4 * servers, 200)))
    chain = draw(st.integers(0, servers))
    pairs += [(s, (s + 1) % servers) for s in range(chain)]
    return servers, [(a, b) for a, b in pairs if a != b]


@settings(max_examples=60, deadline=None)
@given(digraphs())
def test_all_pairs_agree_with_a_search_per_source(graph: tuple[int, list[tuple[int, int]]]) -> None:
    servers, pairs = graph
    table = neighbours(servers, pairs)
    expected = [hop_distances(table, source) for source in range(servers)]
    assert hop_matrix(servers, links_of(pairs)).tolist() == expected
    if any(-1 in row for row in expected):
        missing = sum(row.count(-1) for row in expected)
        with refused(ValueError, "links", missing):
            hop_summary(servers, links_of(pairs))
    else:
        found = hop_summary(servers, links_of(pairs))
        assert found.diameter == max(map(max, expected))
        assert found.mean == sum(map(sum, expected)) / max(1, servers * (servers - 1))


@pytest.mark.parametrize("servers", [2, 63, 64, 65, 128, 500])
def test_a_directed_ring_has_half_its_servers_hops_on_average(servers: int) -> None:
    found = hop_summary(servers, links_of([(s, (s + 1) % servers) for s in range(servers)]))
    assert found.mean == servers / 2
    assert found.diameter == servers - 1


def test_a_server_or_link_that_cannot_be_is_named() -> None:
    with refused(ValueError, "links[1]", "server 3", "0..2"):
        hop_summary(3, links_of([(0, 1), (1, 3)]))
    with refused(ValueError, "links[0]", "server 2", "itself"):
        hop_matrix(3, links_of([(2, 2)]))
    with refused(ValueError, "servers", 0, 1):
        hop_matrix(0, [])


def test_the_moore_bound_is_met_by_the_petersen_graph_and_kautz_digraphs() -> None:
    outer = [(i, (i + 1) % 5) for i in range(5)]
    inner = [(5 + i, 5 + (i + 2) % 5) for i in range(5)]
    edges = outer + inner + [(i, 5 + i) for i in range(5)]
    petersen = hop_summary(10, links_of(edges + [(b, a) for a, b in edges]))
    assert petersen.mean == moore_bound_hops(10, 3, duplex=True)
    kautz = [(i, -(2 * i + j) % 6) for i in range(6) for j in (1, 2)]
    assert hop_summary(6, links_of(kautz)).mean == moore_bound_hops(6, 2, duplex=False)
