"""Degree split and sharing of ports among AllReduce groups (Algorithm 1, lines 2-11)."""

from __future__ import annotations

from typing import Literal

import pytest

from torch_topoopt.plan import Cluster, Demand, GroupDemand
from torch_topoopt.topology.finder.group_rings import degree_split, merge_groups, ring_counts

Ports = Literal["duplex", "simplex"]


@pytest.mark.parametrize(
    ("ports", "allreduce_part", "degree"),
    [
        ("simplex", 0.0, 1),  # "at least one degree"
        ("simplex", 0.2, 2),  # ceil(8 * 0.2)
        ("simplex", 0.5, 4),
        ("simplex", 0.51, 5),
        ("simplex", 1.0, 8),
        ("duplex", 0.0, 2),  # one ring costs two ports
        ("duplex", 0.2, 2),
        ("duplex", 0.51, 6),  # ceil gives 5, rounded up to even
        ("duplex", 1.0, 8),
    ],
)
def test_the_degree_is_split_by_traffic(ports: Ports, allreduce_part: float, degree: int) -> None:
    cluster = Cluster(16, 8, 1.0, ports)
    traffic = round(allreduce_part * 3000)
    groups = [GroupDemand(tuple(range(16)), traffic // 30)]
    assert degree_split(cluster, groups, 3000 - traffic) == degree


def test_two_duplex_servers_have_one_port_to_split() -> None:
    groups = [GroupDemand((0, 1), 1)]
    assert degree_split(Cluster(2, 1, 1.0), groups, 10**9) == 1


def test_groups_are_merged_sorted_by_traffic_and_the_cluster_is_always_there() -> None:
    groups = (GroupDemand((2, 0), 9), GroupDemand((1, 2, 3), 5), GroupDemand((0, 2), 1))
    # both rings carry 20 bytes, 2 * 1 * 10 and 2 * 2 * 5; the larger group is first
    assert merge_groups(Cluster(4, 2, 1.0), Demand(groups, ())) == (
        GroupDemand((1, 2, 3), 5),
        GroupDemand((0, 2), 10),
        GroupDemand((0, 1, 2, 3), 0),
    )


def counts(cluster: Cluster, degree: int, *groups: GroupDemand) -> dict[tuple[int, ...], int]:
    return ring_counts(cluster, merge_groups(cluster, Demand(groups, ())), degree)


EIGHT = tuple(range(8))
LEFT, RIGHT = (0, 1, 2, 3), (4, 5, 6, 7)


def test_one_group_gets_every_port() -> None:
    assert counts(Cluster(8, 4, 1.0), 4, GroupDemand(EIGHT, 5)) == {EIGHT: 2}
    assert counts(Cluster(8, 4, 1.0, "simplex"), 4, GroupDemand(EIGHT, 5)) == {EIGHT: 4}


def test_nested_groups_share_by_their_traffic() -> None:
    # each of LEFT's servers carries 2 * 7/8 * 6 = 10.5 bytes for EIGHT and 2 * 3/4 * 7 for LEFT
    shared = counts(Cluster(8, 4, 1.0), 4, GroupDemand(EIGHT, 6), GroupDemand(LEFT, 7))
    assert shared == {EIGHT: 1, LEFT: 1}


def test_a_group_without_traffic_gets_no_port() -> None:
    assert counts(Cluster(8, 2, 1.0), 2, GroupDemand(EIGHT, 6), GroupDemand(LEFT, 0)) == {
        EIGHT: 1,
        LEFT: 0,
    }


def test_disjoint_groups_leave_the_first_ring_to_the_whole_cluster() -> None:
    shared = counts(Cluster(8, 4, 1.0), 4, GroupDemand(LEFT, 9), GroupDemand(RIGHT, 9))
    assert shared == {EIGHT: 1, LEFT: 1, RIGHT: 1}
    shared = counts(Cluster(8, 2, 1.0), 2, GroupDemand(LEFT, 9), GroupDemand(RIGHT, 9))
    assert shared == {EIGHT: 1, LEFT: 0, RIGHT: 0}


def test_overlapping_groups_that_connect_the_cluster_keep_their_ports() -> None:
    shared = counts(
        Cluster(8, 4, 1.0), 4, GroupDemand((0, 1, 2, 3, 4), 9), GroupDemand((4, 5, 6, 7), 9)
    )
    assert shared[EIGHT] == 0
    assert shared[0, 1, 2, 3, 4] == 1
    assert shared[RIGHT] == 1


def test_a_group_with_few_strides_leaves_its_ports_to_the_others() -> None:
    # LEFT has the one stride 1 however much traffic it has; EIGHT gets the rest
    shared = counts(Cluster(8, 6, 1.0), 6, GroupDemand(LEFT, 10**9), GroupDemand(EIGHT, 1))
    assert shared == {LEFT: 1, EIGHT: 2}


def test_no_demand_at_all_gives_all_ports_to_the_whole_cluster() -> None:
    assert counts(Cluster(8, 4, 1.0), 4) == {EIGHT: 2}


def test_one_server_has_no_rings() -> None:
    assert counts(Cluster(1, 1, 1.0), 1, GroupDemand((0,), 5)) == {(0,): 0}
