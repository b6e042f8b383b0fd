"""The greedy allocation of section IV-A, written down with Python's sets, and all sub-meshes."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

from torch_topoopt.shared_networks.allocation.boards import SubMesh

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.shared_networks.allocation.board_job import Shape
    from torch_topoopt.shared_networks.allocation.boards import Board, Boards

_NOTHING = Fraction(0)


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


def local_submesh(
    free: list[set[int]],
    shapes: Sequence[Shape],
    per_leaf: int,
    enough: Fraction = _NOTHING,
) -> SubMesh | None:
    """What locality chooses, the slow way: of all shapes and first rows the sub-mesh whose
    all-to-all crosses least of upper levels, the first of such, or the first that crosses at most
    `enough`; `free` has each row's free columns. Of rows of a leaf that have the same and follow
    each other only the first is a first row."""
    best: SubMesh | None = None
    least = Fraction(2)
    for rows, columns in shapes:
        bound = sum(_crossing(list(range(count)), per_leaf) for count in (rows, columns))
        last = 0
        for start in range(len(free)):
            if least <= max(bound, enough):
                break
            if len(free[start]) < columns:
                continue
            if start > 0 and last // per_leaf == start // per_leaf and free[last] == free[start]:
                continue
            last = start
            found = _rows_from(free, start, rows, columns)
            if len(found) < rows:
                continue
            common = set.intersection(*(free[row] for row in found))
            columns_of = _local_columns(common, columns, per_leaf)
            chosen = SubMesh(tuple(sorted(found)), tuple(columns_of))
            share = crossing(chosen, per_leaf)
            if share < least:
                best, least = chosen, share
    return best


def _rows_from(free: list[set[int]], start: int, rows: int, columns: int) -> list[int]:
    found, common = [], set.union(*free)
    for i in range(start, start + len(free)):
        shared = common & free[i % len(free)]
        if len(found) < rows and len(shared) >= columns:
            found.append(i % len(free))
            common = shared
        elif i == start:
            break
    return found


def crossing(own: SubMesh, per_leaf: int) -> Fraction:
    """Of an all-to-all, of rows and columns."""
    return sum((_crossing(places, per_leaf) for places in (own.rows, own.columns)), start=_NOTHING)


def _local_columns(common: set[int], wanted: int, per_leaf: int) -> list[int]:
    """From the leaf with the fewest that has enough; else from that with most, and so on."""
    leaves: dict[int, list[int]] = {}
    for column in sorted(common):
        leaves.setdefault(column // per_leaf, []).append(column)
    chosen: list[int] = []
    while len(chosen) < wanted:
        missing = wanted - len(chosen)
        enough = [leaf for leaf in leaves if len(leaves[leaf]) >= missing]
        if enough:
            leaf = min(enough, key=lambda leaf: (len(leaves[leaf]), leaf))
        else:
            leaf = max(leaves, key=lambda leaf: (len(leaves[leaf]), -leaf))
        chosen += leaves.pop(leaf)[:missing]
    return sorted(chosen)


def _crossing(places: Sequence[int], per_leaf: int) -> Fraction:
    leaves = [place // per_leaf for place in places]
    return 1 - Fraction(sum(leaves.count(leaf) for leaf in leaves), len(leaves) ** 2)
