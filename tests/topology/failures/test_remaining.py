"""The network among the remaining servers."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from support.refusals import refused

from torch_topoopt.plan import Cluster, Demand, GroupDemand
from torch_topoopt.topology.failures.degraded import DisconnectedError
from torch_topoopt.topology.failures.remaining import remaining_network
from torch_topoopt.topology.find_network import find_network


@pytest.mark.parametrize("ports", ["duplex", "simplex"])
@pytest.mark.parametrize("gone", [{0}, {7}, {2, 3}, {0, 1, 2, 3, 4, 5, 6}])
def test_all_that_are_left_reach_each_other_over_no_others(ports: str, gone: set[int]) -> None:
    cluster = Cluster(8, 4, 10.0, ports="simplex" if ports == "simplex" else "duplex")
    network = find_network(cluster, Demand((GroupDemand(tuple(range(8)), 1 << 20),), ()))
    left = sorted(set(range(8)) - gone)
    found = remaining_network(cluster, network, left)
    assert set(found.links) == {
        link for link in network.links if not {link.source, link.target} & gone
    }
    adjacent = {(link.source, link.target) for link in found.links}
    table = found.routes_by_pair()
    assert set(table) == set(permutations(left, 2))
    for pair, routes in table.items():
        assert sum(route.weight for route in routes) == pytest.approx(1)
        for route in routes:
            assert (route.servers[0], route.servers[-1]) == pair
            assert all(hop in adjacent for hop in pairwise(route.servers))
    for group in found.groups:
        assert list(group.servers) == left
        assert all(sorted(ring.servers) == left for ring in group.rings)


def test_servers_without_a_way_between_them_are_named() -> None:
    cluster = Cluster(4, 2, 10.0)
    network = find_network(cluster, Demand((GroupDemand((0, 1, 2, 3), 1 << 20),), ()))
    near = next(link.target for link in network.links if link.source == 0)
    far = next(
        server
        for server in range(1, 4)
        if all({link.source, link.target} != {0, server} for link in network.links)
    )
    assert near != far
    with refused(DisconnectedError, "servers 0", far):
        remaining_network(cluster, network, {0, far})
