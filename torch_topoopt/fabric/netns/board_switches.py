"""Which cables of a torus run through switches where it is a HammingMesh of boards.

The boards are meshes of cables on their own; what leaves a board goes to the switch of its row or
column of boards, and from there, in a virtual torus, to the next board in that direction (the
HammingMesh paper, sections III and IV).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from torch_topoopt.plan import Link, Plan


def board_switches(plan: Plan, columns: int, rows: int) -> dict[Link, int]:
    """Links -> the number of the switch that they pass; without those on a board.

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
