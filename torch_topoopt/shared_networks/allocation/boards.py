"""The boards of a HammingMesh, the failed ones among them, and sub-meshes."""

from __future__ import annotations

import operator
import random
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BOARDS = 1_000_000

Board = tuple[int, int]
"""(row, column), each counted from 0."""


@dataclass(frozen=True)
class Boards:
    """`columns` x `rows` boards ("x x y" in HammingMesh, SC 2022); `failed` has (row, column).

    Raises ValueError for numbers out of range.
    """

    columns: int
    rows: int
    failed: frozenset[Board] = frozenset()

    def __post_init__(self) -> None:
        if self.columns < 1 or self.rows < 1 or self.columns * self.rows > MOST_BOARDS:
            raise ValueError(
                f"boards: {self.columns}x{self.rows} is not COLUMNSxROWS of 1 to {MOST_BOARDS} "
                "boards, as 16x16"
            )
        for row, column in sorted(self.failed):
            if not (0 <= row < self.rows and 0 <= column < self.columns):
                raise ValueError(
                    f"failed: [{row}, {column}] is not [row, column] of {self.rows} rows and "
                    f"{self.columns} columns, counted from 0"
                )

    @classmethod
    def parse(cls, text: str) -> Boards:
        """ "16x16" -> 16 columns x 16 rows. Raises ValueError."""
        match = re.fullmatch(r"(\d{1,7})x(\d{1,7})", text, re.ASCII)
        if match is None:
            raise ValueError(f"boards: {text!r} is not COLUMNSxROWS, as 16x16")
        return cls(int(match[1]), int(match[2]))

    @property
    def working(self) -> int:
        """Boards that have not failed."""
        return self.columns * self.rows - len(self.failed)

    def listed_failed(self) -> list[Board]:
        return sorted(self.failed)

    def with_failed(self, failed: frozenset[Board]) -> Boards:
        """These boards with further failed ones."""
        return replace(self, failed=self.failed | failed)

    def with_random_failures(self, count: int, seed: int) -> Boards:
        """`count` further boards fail, all sets of them equally likely. Raises ValueError."""
        left: Sequence[int] = range(self.columns * self.rows)
        if self.failed:
            left = [n for n in left if divmod(n, self.columns) not in self.failed]
        if not 0 <= count <= len(left):
            raise ValueError(f"failed: {count} is not 0 to {len(left)} boards")
        drawn = random.Random(seed).sample(left, count)
        return self.with_failed(frozenset(divmod(n, self.columns) for n in drawn))


@dataclass(frozen=True)
class VirtualBoard:
    """A board, and its place in the sub-mesh; both are (row, column)."""

    JSON_FIELDS: ClassVar = ("board", "is=place")

    board: Board
    place: Board


@dataclass(frozen=True, slots=True)
class SubMesh:
    """A virtual sub-HxMesh: the boards where `rows` and `columns` meet (section III-E).

    All its rows have the same columns, so it is itself a mesh of len(rows) x len(columns) boards:
    the board at (rows[i], columns[j]) is its board (i, j). Both ascend; raises ValueError
    where they do not, or where one is empty.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, numbers in (("rows", self.rows), ("columns", self.columns)):
            if not numbers or numbers[0] < 0 or not all(map(operator.lt, numbers, numbers[1:])):
                raise ValueError(f"{name}: {list(numbers)} are not ascending numbers from 0 on")

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns): "u x v"."""
        return len(self.rows), len(self.columns)

    @property
    def shape_text(self) -> str:
        return f"{len(self.rows)}x{len(self.columns)}"

    @property
    def size(self) -> int:
        """Number of boards."""
        return len(self.rows) * len(self.columns)

    def boards(self) -> list[Board]:
        """Row by row: entry i * len(columns) + j is the virtual board (i, j)."""
        return [(row, column) for row in self.rows for column in self.columns]

    def virtual(self) -> list[VirtualBoard]:
        width = len(self.columns)
        return [VirtualBoard(board, divmod(i, width)) for i, board in enumerate(self.boards())]

    def text(self) -> str:
        """For people: "rows 0-2, columns 1, 3"."""
        return f"rows {ranges_text(self.rows)}, columns {ranges_text(self.columns)}"


def ranges_text(numbers: Sequence[int]) -> str:
    """(0, 1, 2, 5) -> "0-2, 5"."""
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
