"""Groups that are rows, columns or rectangles get the cycles of their shape."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.architectures import hammingmesh, torus
from torch_topoopt.architectures.routing import Routes
from torch_topoopt.plan import Cluster
from torch_topoopt.plan.network import rings_of
from torch_topoopt.planner.mesh.natural_rings import busiest_s, natural_rings

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import ServerGrid, Topology

RATE = 10e9 / 8


def mesh(board: tuple[int, int], boards: tuple[int, int]) -> tuple[Topology, ServerGrid]:
    servers = board[0] * board[1] * boards[0] * boards[1]
    topology = hammingmesh.build(Cluster(servers, 4, 10.0), board=board, boards=boards)
    assert topology.grid is not None
    return topology, topology.grid


def test_a_row_and_a_column_are_rings_in_both_directions() -> None:
    topology, grid = mesh((2, 2), (4, 4))
    routes = Routes(topology)
    for group in (range(8, 16), range(3, 64, 8)):
        rings = natural_rings(routes, grid, tuple(group))
        assert [ring.share for ring in rings] == [0.5, 0.5]
        assert rings[0].servers == tuple(group)
        # every link of the line carries half of the bytes, one way: nothing is shared
        assert busiest_s(routes, rings) == pytest.approx(2 * 7 / 8 / 2 / RATE)


@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (0, 1, 4, 5), (2, 3, 6, 7)])
def test_boards_that_are_no_neighbours_form_a_torus_all_of_whose_links_work(
    rows: tuple[int, ...],
) -> None:
    """A virtual sub-HxMesh has the bandwidth of one of its own (HammingMesh, III-E)."""
    topology, grid = mesh((2, 2), (4, 4))
    routes = Routes(topology)
    columns = (0, 1, 6, 7)
    group = tuple(sorted(grid.number(r, c) for r, c in itertools.product(rows, columns)))
    rings = natural_rings(routes, grid, group)
    assert [ring.share for ring in rings] == [0.25] * 4
    assert all(sorted(ring.servers) == list(group) for ring in rings)
    assert busiest_s(routes, rings) == pytest.approx(2 * 15 / 16 / 4 / RATE)


def test_rings_are_never_busier_than_those_of_the_order_of_numbers() -> None:
    topologies = [
        mesh((2, 2), (4, 2)),
        mesh((4, 4), (2, 2)),
        mesh((1, 1), (6, 3)),
    ]
    plain = torus.build(Cluster(24, 4, 10.0), dimensions=(6, 4))
    assert plain.grid is not None
    for topology, grid in [*topologies, (plain, plain.grid)]:
        routes = Routes(topology)
        for tall, wide in itertools.product(range(1, grid.rows + 1), range(1, grid.columns + 1)):
            group = tuple(grid.number(r, c) for r in range(tall) for c in range(wide))
            if len(group) < 3:
                continue
            rings = natural_rings(routes, grid, group)
            if not rings:  # an odd rectangle with no cycle among its own
                assert tall % 2 == wide % 2 == 1
                continue
            naive = rings_of([group], both_ways=True)
            assert busiest_s(routes, rings) <= busiest_s(routes, naive) * (1 + 1e-9)


def test_other_sets_and_pairs_have_none() -> None:
    topology, grid = mesh((2, 2), (2, 2))
    routes = Routes(topology)
    assert natural_rings(routes, grid, (0, 1)) == ()
    assert natural_rings(routes, grid, (0, 1, 4)) == ()
    assert natural_rings(routes, grid, (0, 5, 10, 15)) == ()
