"""Ring orders for groups without links: short, whole, and the same every time."""

from __future__ import annotations

import itertools

import pytest

from torch_topoopt.plan import Cluster
from torch_topoopt.topology.finder.multi_hop_rings import ring_hops, short_ring
from torch_topoopt.topology.finder.port_allocator import PortAllocator
from torch_topoopt.topology.routing.routes import all_hop_distances


def _distances(servers: int, strides: tuple[int, ...], ports: str = "duplex") -> list[list[int]]:
    degree = len(strides) * (2 if ports == "duplex" else 1)
    wiring = PortAllocator(Cluster(servers, degree, 10.0, ports))  # type: ignore[arg-type]
    for stride in strides:
        wiring.add_stride(range(servers), stride)
    return all_hop_distances(servers, wiring.links)


def test_a_group_that_follows_the_ring_needs_no_detour() -> None:
    distances = _distances(12, (1,))
    members = tuple(range(12))
    assert ring_hops(short_ring(members, distances), distances) == 12


def test_a_strided_group_uses_the_stride_that_has_links() -> None:
    # servers 0, 5, 10, 3, 8, 1 are neighbours along stride 5 of 12; sorted order is 0 1 3 5 8 10
    distances = _distances(12, (1, 5))
    order = short_ring((0, 1, 3, 5, 8, 10), distances)
    assert ring_hops(order, distances) <= ring_hops((0, 5, 10, 3, 8, 1), distances) == 6


def test_reversing_segments_saves_hops_where_regular_and_nearest_orders_do_not() -> None:
    # regular orders and the nearest-neighbour tour of these five need 12 hops or more
    members = (0, 1, 9, 19, 21)
    distances = _distances(24, (1, 5))
    best = min(ring_hops((0, *rest), distances) for rest in itertools.permutations(members[1:]))
    assert ring_hops(short_ring(members, distances), distances) == best == 10


@pytest.mark.parametrize("ports", ["duplex", "simplex"])
def test_orders_of_small_groups_are_within_one_percent_of_the_best(ports: str) -> None:
    distances = _distances(16, (1, 3), ports)
    found = best = 0
    for others in itertools.combinations(range(1, 16), 4):
        order = short_ring((0, *others), distances)
        assert sorted(order) == [0, *others]
        assert order[0] == 0
        assert ring_hops(order, distances) <= ring_hops((0, *others), distances)
        found += ring_hops(order, distances)
        best += min(ring_hops((0, *x), distances) for x in itertools.permutations(others))
    assert best <= found <= 1.01 * best


@pytest.mark.parametrize("members", [(3,), (2, 9), (1, 4, 5)])
def test_groups_of_three_and_fewer_have_one_order(members: tuple[int, ...]) -> None:
    assert short_ring(members, _distances(12, (1,))) == members
