"""Shortest paths: all of the least hops, distinct, loop-free, least loaded (against networkx)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.topology.routing.shortest_paths import (
    hop_distances,
    least_loaded_paths,
    neighbours,
)

if TYPE_CHECKING:
    from torch_topoopt.plan import Pair


@st.composite
def _networks(draw: st.DrawFn) -> tuple[int, set[Pair], dict[Pair, float]]:
    """A strongly connected directed network with a load on every link."""
    servers = draw(st.integers(2, 9))
    pairs = [(a, b) for a in range(servers) for b in range(servers) if a != b]
    adjacent = {(i, (i + 1) % servers) for i in range(servers)}
    adjacent |= set(draw(st.lists(st.sampled_from(pairs), max_size=20)))
    loads = {pair: float(draw(st.integers(0, 5))) for pair in sorted(adjacent)}
    return servers, adjacent, loads


@settings(deadline=None)
@given(network=_networks(), count=st.integers(1, 5))
def test_the_least_loaded_of_all_shortest_paths_are_found(
    network: tuple[int, set[Pair], dict[Pair, float]], count: int
) -> None:
    servers, adjacent, load = network
    graph = nx.DiGraph(sorted(adjacent))
    incoming = neighbours(servers, {(b, a) for a, b in adjacent})
    for source in range(servers):
        distance = hop_distances(neighbours(servers, adjacent), source)
        assert distance == [nx.shortest_path_length(graph, source, t) for t in range(servers)]
        for target in set(range(servers)) - {source}:
            found = least_loaded_paths(incoming, distance, target, count, load)
            every = sorted(
                (sum(load[hop] for hop in itertools.pairwise(path)), tuple(path))
                for path in nx.all_shortest_paths(graph, source, target)
            )
            costs = [sum(load[hop] for hop in itertools.pairwise(path)) for path in found]
            assert costs == [cost for cost, _ in every[:count]]
            assert len(set(found)) == len(found)
            assert set(found) <= {path for _, path in every}


def test_an_unreachable_server_is_an_error() -> None:
    table = neighbours(3, {(0, 1), (1, 0), (2, 0)})
    distance = hop_distances(table, 0)
    assert distance == [0, 1, -1]
    with refused(ValueError, "server 2", "reached"):
        least_loaded_paths(neighbours(3, {(1, 0), (0, 1), (0, 2)}), distance, 2, 1, {})
