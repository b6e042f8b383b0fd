"""Channel dependency graphs: routing that cannot deadlock, and the cycle of routing that can."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from support.refusals import refused

from torch_topoopt.architectures import dragonfly, fat_tree, hammingmesh, torus
from torch_topoopt.architectures.adaptive import ANY_PATH, adaptive_routing, every_hop_rule
from torch_topoopt.architectures.deadlock import dependency_cycle
from torch_topoopt.architectures.topology import ChannelRule
from torch_topoopt.plan import Cluster

if TYPE_CHECKING:
    from torch_topoopt import _core
    from torch_topoopt.architectures.topology import Topology

# a, b, x, y, radix; small radices make trees of several leaves.
MESHES = [
    (2, 2, 4, 4, 64),
    (4, 4, 2, 3, 64),
    (3, 2, 4, 3, 64),
    (1, 1, 5, 4, 64),
    (2, 3, 6, 2, 8),
    (4, 2, 3, 4, 6),
    (1, 3, 7, 2, 6),
    (3, 3, 1, 4, 8),
    (4, 3, 1, 1, 64),
]


def _mesh(a: int, b: int, x: int, y: int, radix: int, span: str = "auto") -> Topology:
    cluster = Cluster(servers=a * b * x * y, degree=4, link_gbps=400.0)
    return hammingmesh.build(cluster, board=(a, b), boards=(x, y), radix=radix, span=span)


def _checked_cycle(topology: Topology, routing: _core.AdaptiveRouting) -> int:
    """The length of the cycle that was found; every step of it is one that the routing allows."""
    cycle = dependency_cycle(topology, routing)
    for here, after in pairwise((*cycle, *cycle[:1])):
        assert here.target == after.source
        assert any(
            after.link in routing.candidates(here.target, target, over=here.link)
            for target in range(topology.servers)
            if target != here.target
        )
    return len(cycle)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_north_last_and_a_channel_more_per_board_cannot_deadlock(sizes: tuple[int, ...]) -> None:
    topology = _mesh(*sizes)
    routing = adaptive_routing(topology)
    # A leaf of three ports has those of one board and a half.
    assert routing.channels == (4 if sizes[4] == 6 else 3)
    assert dependency_cycle(topology, routing) == ()


@pytest.mark.parametrize("span", ["board", "accelerator"])
def test_it_cannot_either_when_rows_of_a_board_share_switches_or_not(span: str) -> None:
    topology = _mesh(4, 2, 3, 2, 8 if span == "accelerator" else 6, span)
    assert dependency_cycle(topology, adaptive_routing(topology)) == ()


@pytest.mark.parametrize("sizes", MESHES[:6], ids=str)
def test_without_the_rule_shortest_paths_form_a_cycle(sizes: tuple[int, ...]) -> None:
    topology = _mesh(*sizes)
    assert _checked_cycle(topology, adaptive_routing(topology, ANY_PATH)) > 2


@pytest.mark.parametrize("sizes", [(2, 2, 4, 4, 64), (3, 2, 4, 3, 64), (4, 2, 3, 4, 6)], ids=str)
def test_north_last_and_channels_are_both_needed(sizes: tuple[int, ...]) -> None:
    topology = _mesh(*sizes)
    rule = topology.channel_rule
    assert rule is not None
    no_channels = adaptive_routing(topology, ChannelRule(1, (), rule.last, rule.lifts))
    assert _checked_cycle(topology, no_channels) > 2
    any_turn = adaptive_routing(topology, ChannelRule(3, rule.raises, ()))
    assert _checked_cycle(topology, any_turn) > 2


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_the_rule_keeps_a_shortest_path_for_every_pair(sizes: tuple[int, ...]) -> None:
    topology = _mesh(*sizes)
    routing = adaptive_routing(topology)
    graph = nx.Graph((link.source, link.target) for link in topology.links)
    for target in range(0, topology.servers, 5):
        shortest = nx.single_source_shortest_path_length(graph, target)
        assert routing.hops(target) == [shortest[node] for node in range(topology.nodes)]


def test_three_channels_are_enough_and_two_are_not() -> None:
    topology = _mesh(2, 2, 3, 3, 64)
    rule = topology.channel_rule
    assert rule is not None
    two = adaptive_routing(topology, ChannelRule(2, rule.raises, rule.last, rule.lifts))
    with refused(ValueError, "channels", 2, 3):
        dependency_cycle(topology, two)


def test_north_is_the_last_direction_on_a_board() -> None:
    topology = _mesh(4, 4, 2, 2, 64)
    routing = adaptive_routing(topology)
    link_of = {(link.source, link.target): i for i, link in enumerate(topology.links)}
    # From (2, 1) to (1, 2) on the board in the north-west: east first, then north.
    start, east, target = 2 * 8 + 1, 2 * 8 + 2, 8 + 2
    assert routing.candidates(start, target) == [link_of[start, east]]
    assert routing.candidates(east, target, over=link_of[start, east]) == [link_of[east, target]]
    # To (3, 2) there is a choice: east or south.
    target = 3 * 8 + 2
    assert sorted(routing.candidates(start, target)) == sorted(
        [link_of[start, east], link_of[start, start + 8]]
    )


def test_a_board_is_left_for_its_own_other_side_where_that_is_as_short() -> None:
    topology = _mesh(4, 1, 2, 2, 64)
    routing = adaptive_routing(topology)
    # Three links from west to east on the board, two over the switch.
    assert routing.hops(3)[0] == 2
    assert routing.hops(2)[0] == 2


@pytest.mark.parametrize("dimensions", [(4, 4), (5, 3), (2, 6), (8, 2)], ids=str)
def test_a_torus_is_a_mesh_whose_edges_meet_on_the_next_channel(
    dimensions: tuple[int, int],
) -> None:
    cluster = Cluster(servers=dimensions[0] * dimensions[1], degree=4, link_gbps=100.0)
    topology = torus.build(cluster, dimensions=dimensions)
    assert dependency_cycle(topology, adaptive_routing(topology)) == ()
    if min(dimensions) > 2:
        assert _checked_cycle(topology, adaptive_routing(topology, ANY_PATH)) > 2


def test_shortest_paths_go_up_and_down_a_fat_tree_and_need_no_rule() -> None:
    cluster = Cluster(servers=16, degree=2, link_gbps=100.0)
    topology = fat_tree.build(cluster, radix=4)
    routing = adaptive_routing(topology)
    assert routing.channels == 1
    assert dependency_cycle(topology, routing) == ()
    # From its edge switch a packet may go up to each of both aggregation switches, from there to
    # each of two core switches, and then it has one way down.
    edge = 16
    ways = {topology.links[link].target for link in routing.candidates(edge, 15)}
    assert len(ways) == 2
    for aggregation in ways:
        cores = {topology.links[link].target for link in routing.candidates(aggregation, 15)}
        assert len(cores) == 2
        assert all(len(routing.candidates(core, 15)) == 1 for core in cores)


def test_a_channel_per_hop_cannot_deadlock_on_any_network() -> None:
    cluster = Cluster(servers=42, degree=1, link_gbps=100.0)
    for topology in (dragonfly.build(cluster, p=2), _mesh(3, 2, 2, 3, 64)):
        rule = every_hop_rule(topology)
        assert dependency_cycle(topology, adaptive_routing(topology, rule)) == ()
