"""The greedy allocation of section IV-A, written down with Python's sets, and all sub-meshes."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from torch_topoopt.allocation.boards import SubMesh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.allocation.board_job import Shape
    from torch_topoopt.allocation.boards import Board, Boards


def greedy_submesh(boards: Boards, taken: set[Board], shape: Shape) -> SubMesh | None:
    """Steps 1 to 4, from the first row with enough columns."""
    u, v = shape
    free = [
        {c for c in range(boards.columns) if (r, c) not in boards.failed | taken}
        for r in range(boards.rows)
    ]
    chosen: list[int] = []
    common: set[int] = set(range(boards.columns))
    for row, columns in enumerate(free):
        if len(chosen) < u and len(common & columns) >= v:
            common &= columns
            chosen.append(row)
    if len(chosen) < u:
        return None
    return SubMesh(tuple(chosen), tuple(sorted(common)[:v]))


def every_submesh(boards: Boards, taken: set[Board], shape: Shape) -> Iterator[SubMesh]:
    """All free ones of a shape."""
    for rows in combinations(range(boards.rows), shape[0]):
        for columns in combinations(range(boards.columns), shape[1]):
            own = SubMesh(rows, columns)
            if not any(board in boards.failed | taken for board in own.boards()):
                yield own


def most_boards(boards: Boards, shapes: list[list[Shape]], taken: set[Board]) -> int:
    """The most boards that jobs can have, each in one of its shapes: all ways are tried."""
    if not shapes:
        return 0
    best = most_boards(boards, shapes[1:], taken)
    for shape in shapes[0]:
        for own in every_submesh(boards, taken, shape):
            rest = most_boards(boards, shapes[1:], taken | set(own.boards()))
            best = max(best, own.size + rest)
    return best
