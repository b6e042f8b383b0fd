"""What no allocation of a mix exceeds where boards have failed (docs/planning/allocation.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from figures.cells.board_jobs import BOUNDS, DEPENDS_ON, job_mixes
from figures.papers.upper_bound import most_boards
from torch_topoopt.shared_networks.allocation.board_job import BoardJob
from torch_topoopt.shared_networks.allocation.boards import Boards

if TYPE_CHECKING:
    from torch_topoopt.shared_networks.allocation.board_job import ShapeRules

__all__ = ["DEPENDS_ON", "bounds_with_failures"]

_MOST_ROWS = 16  # of which all subsets are looked at
_MOST_COLUMNS = 64


def widest(boards: Boards) -> list[int]:
    """Entry u: the most working columns that any u rows have in common. Raises ValueError for more
    than 16 rows or 64 columns."""
    if boards.rows > _MOST_ROWS or boards.columns > _MOST_COLUMNS:
        raise ValueError(f"boards: {boards.columns}x{boards.rows} are more than 64 x 16")
    common = np.array([2**boards.columns - 1], dtype=np.uint64)  # of each subset of the rows so far
    counts = np.zeros(1, dtype=int)
    for row in range(boards.rows):
        failed = sum(1 << column for r, column in boards.failed if r == row)
        common = np.concatenate([common, common & ~np.uint64(failed)])
        counts = np.concatenate([counts, counts + 1])
    widths = np.bitwise_count(common)
    return [int(widths[counts == rows].max()) for rows in range(boards.rows + 1)]


def most_with_failures(boards: Boards, jobs: list[BoardJob], rules: ShapeRules) -> int:
    """Boards that jobs can have together at most: those for which there is a sub-mesh at all."""
    columns_of = widest(boards)
    shapes = {job.size: rules.shapes(job, boards.rows, boards.columns) for job in jobs}
    fits = {size: any(v <= columns_of[u] for u, v in every) for size, every in shapes.items()}
    return most_boards(boards, [job for job in jobs if fits[job.size]], rules)


# parameters: the mixes, the boards, and how jobs get them
def bounds_with_failures(
    *, law: str, columns: int, rows: int, mixes: int, variant: str, failed: int, seed: int
) -> list[float]:
    """As board_jobs.utilisations, of the same mixes and the same failed boards."""
    found = []
    for number, mix in zip(range(mixes), job_mixes(law, columns, rows, seed), strict=False):
        boards = Boards(columns, rows).with_random_failures(failed, seed + number)
        jobs = [BoardJob.square(f"{i}", size) for i, size in enumerate(mix)]
        found.append(round(most_with_failures(boards, jobs, BOUNDS[variant]) / boards.working, 6))
    return found
