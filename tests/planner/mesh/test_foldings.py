"""Foldings place every logical server once, and neighbours next to each other."""

from __future__ import annotations

import itertools
import math

import pytest
from support.refusals import refused

from torch_topoopt.architectures.topology import ServerGrid
from torch_topoopt.plan import Placement
from torch_topoopt.planner.mesh.foldings import (
    AxisFold,
    Folding,
    axes_of,
    by_boards,
    foldings,
    row_major,
)


@pytest.mark.parametrize(
    ("grid", "axes"),
    [
        (ServerGrid(4, 4), (4, 4)),
        (ServerGrid(4, 8), (2, 4, 4)),
        (ServerGrid(3, 6), (3, 2)),
        (ServerGrid(2, 2), (4,)),
    ],
)
def test_every_folding_is_another_injection_into_the_grid(
    grid: ServerGrid, axes: tuple[int, ...]
) -> None:
    found = list(foldings(grid, axes))
    assert len(set(found)) == len(found) > 0
    for folding in found:
        order = folding.order(grid)
        assert len(order) == len(set(order)) == math.prod(axes)
        assert all(0 <= server < grid.servers for server in order)
        assert tuple(axis.rows * axis.columns for axis in folding.axes) == axes


def test_all_shapes_and_nestings_of_two_axes_are_there() -> None:
    grid = ServerGrid(4, 4)
    orders = {folding.order(grid) for folding in foldings(grid, (4, 4))}
    rows = tuple(range(16))
    columns = tuple(4 * (i % 4) + i // 4 for i in range(16))
    squares = tuple((2 * (i // 8) + i % 4 // 2) * 4 + 2 * (i // 4 % 2) + i % 2 for i in range(16))
    spread = tuple((i % 4 // 2 * 2 + i // 8) * 4 + i % 2 * 2 + i // 4 % 2 for i in range(16))
    assert {rows, columns, squares, spread} <= orders


def test_an_axis_that_turns_keeps_what_follows_each_other_adjacent() -> None:
    order = Folding((AxisFold(4, 4, turns=True),), (0,), (0,)).order(ServerGrid(4, 4))
    for a, b in itertools.pairwise(order):
        assert abs(a // 4 - b // 4) + abs(a % 4 - b % 4) == 1


def test_the_mapping_of_figure_4_puts_slices_of_the_third_axis_on_neighbouring_boards() -> None:
    """A virtual 4 x 4 x 2 on an Hx2Mesh of 4 x 2 boards: the third axis is the outer one."""
    grid = ServerGrid(4, 8, 2, 2)
    folding = Folding((AxisFold(1, 4), AxisFold(4, 1), AxisFold(1, 2)), (0, 1, 2), (0, 1, 2))
    order = folding.order(grid)
    for place in range(16):
        first, second = order[place], order[16 + place]
        assert first // 8 == second // 8  # through the switches of the same row
        assert second - first == 4
    assert str(folding) == "1 x 4; 4 x 1; 1 x 2"


def test_boards_are_walked_one_after_the_other() -> None:
    grid = ServerGrid(4, 4, 2, 2)
    order = by_boards(grid).order(grid)
    boards = [(server // 4 // 2, server % 4 // 2) for server in order]
    assert boards == [board for board in ((0, 0), (0, 1), (1, 1), (1, 0)) for _ in range(4)]
    assert row_major(grid).order(grid) == tuple(range(16))


def test_a_folding_that_is_too_large_is_refused() -> None:
    with refused(ValueError, "folding", "2 x 8", "4 x 4"):
        Folding((AxisFold(2, 8),), (0,), (0,)).order(ServerGrid(4, 4))


def test_axes_are_read_from_groups_and_the_distances_in_them() -> None:
    parts = Placement("a", (0, 1, 2, 3), columns=4)
    stage = Placement("b", tuple(range(16)), columns=4)
    across = Placement("c", (0, 8, 16, 24))
    assert axes_of((parts, stage), 64) == (4, 4, 4)
    assert axes_of((parts, across), 32) == (4, 2, 4)
    assert axes_of((Placement("d", tuple(range(12))),), 12) == (12,)
    assert axes_of((Placement("e", (0, 1, 2, 3, 4)),), 12) == (12,)  # 5 divides nothing
