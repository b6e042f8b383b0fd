"""Plans for servers that are wired as a torus."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from support.refusals import refused

from torch_topoopt.plan import Cluster, Demand, Group, Plan
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.finder.torus_network import torus_cluster, torus_network


def hops_of(group: Group) -> Counter[tuple[int, int]]:
    return Counter(
        hop for ring in group.rings for hop in pairwise((*ring.servers, ring.servers[0]))
    )


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 5), (6, 3), (12, 4), (2, 4), (2, 2)])
def test_four_rings_use_every_link_of_a_torus_once(rows: int, columns: int) -> None:
    network = torus_network(torus_cluster(rows, columns, 1.0), rows, columns)
    everyone = network.groups[0]
    assert len(everyone.rings) == 4
    assert {ring.share for ring in everyone.rings} == {0.25}
    links = Counter((link.source, link.target) for link in network.links)
    assert hops_of(everyone) == links
    assert links.total() == 4 * rows * columns


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 5), (2, 3), (5, 2)])
def test_rows_and_columns_are_groups_with_rings_on_their_own_cables(
    rows: int, columns: int
) -> None:
    network = torus_network(torus_cluster(rows, columns, 1.0), rows, columns)
    everyone, *lines = network.groups
    assert [len(row) for row in everyone.grid] == [columns] * rows
    adjacent = {(link.source, link.target) for link in network.links}
    for i, row in enumerate(everyone.grid):
        for j, server in enumerate(row):
            assert server == i * columns + j
            assert (server, row[(j + 1) % columns]) in adjacent
            assert (server, everyone.grid[(i + 1) % rows][j]) in adjacent
    assert len(lines) == rows + columns
    assert all(set(hops_of(line)) <= adjacent for line in lines)


def test_a_torus_without_two_disjoint_cycles_has_one_in_both_directions() -> None:
    network = torus_network(torus_cluster(3, 2, 1.0), 3, 2)
    assert len(network.groups[0].rings) == 2
    assert set(hops_of(network.groups[0])) <= {(k.source, k.target) for k in network.links}


def test_its_plan_is_read_as_it_was_written() -> None:
    cluster = torus_cluster(3, 4, 1.0)
    plan = Plan.of_network(cluster, torus_network(cluster, 3, 4), Demand((), ()), model="none")
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("cluster", "rows", "columns", "tokens"),
    [
        (Cluster(5, 4, 1.0), 1, 5, ("torus", "1 x 5", "2 x 2")),
        (Cluster(10, 4, 1.0), 3, 3, ("cluster", 10, 4, "3 x 3")),
        (Cluster(9, 2, 1.0), 3, 3, (9, 2)),
        (Cluster(9, 4, 1.0, "simplex"), 3, 3, (9, 4)),
    ],
)
def test_another_cluster_is_refused(
    cluster: Cluster, rows: int, columns: int, tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, *tokens):
        torus_network(cluster, rows, columns)
