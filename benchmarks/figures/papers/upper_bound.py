"""What no allocation of jobs can exceed.

Two sub-meshes of u x v and u' x v' boards have a row in common where u + u' is more than there are,
and likewise a column; with both, they have a board in common. So at most one of two jobs gets its
boards where that holds for every pair of shapes that they may take, and the jobs that get theirs
are a set without such a pair.
"""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.shared_networks.allocation.board_job import BoardJob, Shape, ShapeRules
    from torch_topoopt.shared_networks.allocation.boards import Boards


def most_boards(boards: Boards, jobs: Sequence[BoardJob], rules: ShapeRules) -> int:
    """Boards that jobs can have together at most, in the shapes that the rules allow."""
    known: dict[Shape, list[Shape]] = {}
    for job in jobs:
        own = (job.rows, job.columns)
        if own not in known:
            known[own] = rules.shapes(job, boards.rows, boards.columns)
    pairs = combinations_with_replacement(sorted(own for own in known if known[own]), 2)
    both = {(a, b): _fit_both(boards, known[a], known[b]) for a, b in pairs}
    contesting = {own for pair, fits in both.items() if not fits for own in pair}
    sizes: list[int] = []
    shapes_of: list[Shape] = []
    free = 0  # boards of jobs that fit with any other
    for job in jobs:
        own = (job.rows, job.columns)
        if own in contesting:
            shapes_of.append(own)
            sizes.append(job.size)
        elif known[own]:
            free += job.size
    rivals: dict[int, set[int]] = {i: set() for i in range(len(sizes))}
    for (i, one), (j, other) in combinations(enumerate(shapes_of), 2):
        if not both[min(one, other), max(one, other)]:
            rivals[i].add(j)
            rivals[j].add(i)
    return min(free + _heaviest(set(rivals), rivals, sizes), boards.working)


def _fit_both(boards: Boards, one: Sequence[Shape], other: Sequence[Shape]) -> bool:
    return any(
        a[0] + b[0] <= boards.rows or a[1] + b[1] <= boards.columns for a in one for b in other
    )


def _heaviest(left: set[int], rivals: Mapping[int, set[int]], sizes: Sequence[int]) -> int:
    """The weight of the heaviest subset of `left` without rivals: with or without that of most."""
    if not left:
        return 0
    worst = max(left, key=lambda i: (len(rivals[i] & left), sizes[i]))
    if not rivals[worst] & left:
        return sum(sizes[i] for i in left)
    without = _heaviest(left - {worst}, rivals, sizes)
    return max(without, sizes[worst] + _heaviest(left - {worst} - rivals[worst], rivals, sizes))
