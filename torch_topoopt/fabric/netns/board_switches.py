"""Finds the cables of a torus that run through switches in a HammingMesh of boards.

Each board is a mesh of cables. Its outgoing cables end at the switch of its row or column of
boards, which forwards to the next board in a virtual torus (HammingMesh paper, sections III, IV).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from torch_topoopt.plan import Link, Plan


def board_switches(plan: Plan, columns: int, rows: int) -> dict[Link, int]:
    """Link -> the number of its switch; without links on a board.

    `plan` has a group whose grid holds all servers; a board is `columns` x `rows` of them. The
    switches of rows of boards come first, then those of columns. Raises FabricError if there is no
    such grid, or boards do not tile it.
    """
    grid = next((group.grid for group in plan.network.groups if group.grid), ())
    if sum(map(len, grid)) != plan.cluster.servers:
        raise FabricError("boards: the plan has no grid of all its servers; wire a torus")
    if min(columns, rows) < 1 or len(grid) % rows or len(grid[0]) % columns:
        raise FabricError(
            f"boards: {columns} x {rows} do not tile {len(grid[0])} columns and {len(grid)} rows"
        )
    place = {server: (i, j) for i, row in enumerate(grid) for j, server in enumerate(row)}
    board_rows = len(grid) // rows
    switches = {}
    for link in plan.network.links:
        (i, j), (k, m) = place[link.source], place[link.target]
        if i == k and _leaves(j, m, columns, len(grid[0])):
            switches[link] = i // rows
        elif j == m and _leaves(i, k, rows, len(grid)):
            switches[link] = board_rows + j // columns
    return switches


def _leaves(here: int, there: int, board: int, size: int) -> bool:
    """Whether the cable between two places of a line passes the edge of a board.

    One board alone has the cable around on the switch as well; of two places on one board, which
    two cables join, both stay there.
    """
    return here // board != there // board or (abs(here - there) == size - 1 > 1)
