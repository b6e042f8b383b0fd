"""Deadlock: cycles of dependencies are found, and channels leave none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import adjacency, random_capacity

from torch_topoopt.plan import POLICIES, AllToAll, Cluster, Demand, GroupDemand, PairTable, Policy
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.routing.k_shortest_paths import k_shortest_paths
from torch_topoopt.topology.routing.policies import reroute
from torch_topoopt.topology.routing.virtual_channels import (
    check_channels,
    dependency_cycle,
    virtual_channels,
)


def clockwise(servers: int) -> list[tuple[int, ...]]:
    """All routes of a ring in which everything goes one way round."""
    return [
        tuple((s + i) % servers for i in range(hops + 1))
        for s in range(servers)
        for hops in range(1, servers)
    ]


def on_one_channel(ways: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {way: (0,) * (len(way) - 1) for way in ways}


def test_a_ring_of_four_with_all_routes_clockwise_deadlocks_on_one_channel_and_needs_two() -> None:
    ways = clockwise(4)
    assert dependency_cycle(on_one_channel(ways)) == ((0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 0, 0))
    with pytest.raises(ValueError, match=r"can deadlock on the links 0->1, 1->2, 2->3, 3->0"):
        check_channels(on_one_channel(ways))
    plan = virtual_channels(ways)
    assert plan.count == 2
    check_channels(plan.by_way)
    assert plan.by_way.keys() == set(ways)


def test_routes_that_cannot_deadlock_share_one_channel() -> None:
    tree = [(1, 0, 2), (2, 0, 1), (1, 0, 3), (3, 0, 2), (0, 1), (3, 0, 1)]
    plan = virtual_channels(tree)
    assert (plan.count, plan.kept) == (1, True)
    check_channels(plan.by_way)


@pytest.mark.parametrize("servers", [5, 9, 16])
def test_a_long_one_way_ring_changes_channel_once(servers: int) -> None:
    """A dateline: two channels do for any ring, where staying on one channel asks for more."""
    plan = virtual_channels(clockwise(servers))
    assert plan.count == 2
    check_channels(plan.by_way)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 9), st.integers(0, 14), st.integers(0, 10**6), st.integers(1, 4))
def test_no_cycle_is_left_on_random_networks(
    servers: int, extra: int, seed: int, paths: int
) -> None:
    table, incoming = adjacency(random_capacity(servers, extra, seed))
    ways = [
        way
        for source in range(servers)
        for target in range(servers)
        if source != target
        for way in k_shortest_paths(table, incoming, source, target, paths)
    ]
    plan = virtual_channels(ways)
    check_channels(plan.by_way)
    assert plan.by_way.keys() == set(ways)
    used = {channel for channels in plan.by_way.values() for channel in channels}
    assert used == set(range(plan.count))
    if plan.kept:
        assert all(len(set(channels)) == 1 for channels in plan.by_way.values())
    one = on_one_channel(ways)
    assert (plan.count == 1) == (dependency_cycle(one) is None)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ports", ["duplex", "simplex"])
def test_every_policy_on_a_planned_network_gets_channels(policy: Policy, ports: str) -> None:
    everyone = tuple(range(12))
    cluster = Cluster(12, 4, 10.0, ports=ports)  # type: ignore[arg-type]
    groups = (GroupDemand(everyone, 1000),)
    demand = Demand(groups, PairTable((AllToAll(everyone, 10),)))
    network = reroute(find_network(cluster, Demand(groups, ())), demand, 12, policy)
    plan = virtual_channels(route.servers for route in network.routes)
    check_channels(plan.by_way)
    assert plan.count <= 4


def test_channels_that_do_not_fit_their_route_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"channels: 1 for the 2 hops of \(0, 1, 2\)"):
        check_channels({(0, 1, 2): (0,)})
