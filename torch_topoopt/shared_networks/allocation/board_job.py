"""The board shape that a job requests, and its acceptable alternatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

Shape = tuple[int, int]
"""(rows, columns) of boards: "u x v"."""

DEFAULT_MOST_ASPECT = 8.0


@dataclass(frozen=True)
class BoardJob:
    """A job that requests `rows` x `columns` boards ("u x v"). Raises ValueError for less than 1 of
    either."""

    JSON_FIELDS: ClassVar = ("name", "shape=shape_text")

    name: str
    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"job {self.name}: {self.rows}x{self.columns} has no boards")

    @classmethod
    def square(cls, name: str, boards: int) -> BoardJob:
        """`boards` boards, as square as possible with rows x columns = boards, rows <= columns
        (section IV-B). Raises ValueError for less than 1."""
        if boards < 1:
            raise ValueError(f"job {name}: {boards} boards are none")
        rows = _squarest(boards)
        return cls(name, rows, boards // rows)

    @property
    def shape_text(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def size(self) -> int:
        """Number of boards."""
        return self.rows * self.columns


@lru_cache(maxsize=4096)
def _squarest(boards: int) -> int:
    """Rows of so many boards, at most as many as columns."""
    return next(r for r in range(math.isqrt(boards), 0, -1) if boards % r == 0)


def aspect(shape: Shape) -> float:
    """The deviation from a square: the longer side over the shorter."""
    return max(shape) / min(shape)


@dataclass(frozen=True)
class ShapeRules:
    """The shapes that a job accepts in addition to its own.

    `transpose`: v x u instead of u x v. `most_aspect`: any u' x v' of equal area whose longer side
    is at most so many times the shorter; None: none of them (section IV-A).
    """

    transpose: bool = False
    most_aspect: float | None = None

    def __post_init__(self) -> None:
        if self.most_aspect is not None and not 1 <= self.most_aspect < math.inf:
            raise ValueError(f"aspect: {self.most_aspect:g} is not a ratio of 1 or more")

    def shapes(self, job: BoardJob, rows: int, columns: int) -> list[Shape]:
        """Shapes that fit into `rows` x `columns` boards, in the order of the attempts.

        First the job's own, then its transpose, then the others, the squarest first. Without
        `transpose` the longer side stays the longer one.
        """
        own = (job.rows, job.columns)
        wanted = [own, own[::-1]] if self.transpose else [own]
        if self.most_aspect is not None:
            others = [(r, job.size // r) for r in range(1, job.size + 1) if job.size % r == 0]
            wide = job.rows <= job.columns
            wanted += sorted(
                (
                    shape
                    for shape in others
                    if aspect(shape) <= self.most_aspect
                    and (self.transpose or shape[0] == shape[1] or (shape[0] < shape[1]) == wide)
                ),
                key=lambda shape: (aspect(shape), (shape[0] < shape[1]) != wide),
            )
        return [s for s in dict.fromkeys(wanted) if s[0] <= rows and s[1] <= columns]
