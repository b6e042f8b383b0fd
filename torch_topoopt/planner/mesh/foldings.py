"""Orders of servers on a grid: logical axes folded into rows and columns.

A strategy numbers servers in nested axes: parts of an operator, then samples, then stages
(HammingMesh paper, section II-D). Each axis gets some rows and columns of the grid, inside those of
the outer axes (section III-E, figure 4: a third dimension is cut into slices, and consecutive
slices are neighbours). An axis of several rows walks all of them in the same direction, or turns at
the end of each, so that successors stay adjacent.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.architectures.topology import ServerGrid
    from torch_topoopt.search.strategies import Strategy

Order = tuple[int, ...]  # the server of the grid for each logical one


@dataclass(frozen=True)
class AxisFold:
    """An axis of `rows` x `columns` places; with `turns`, every other row is walked backwards."""

    rows: int
    columns: int
    turns: bool = False

    def place(self, index: int) -> tuple[int, int]:
        """(row, column) of place `index` within the axis."""
        row, column = divmod(index, self.columns)
        return row, self.columns - 1 - column if self.turns and row % 2 else column

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}{', turning' if self.turns else ''}"


@dataclass(frozen=True)
class Folding:
    """The places of the logical servers. `axes` go from the inner to the outer one; `down` and
    `across` list axis indices in the nesting order of their rows (columns), inner first."""

    axes: tuple[AxisFold, ...]
    down: tuple[int, ...]
    across: tuple[int, ...]

    def order(self, grid: ServerGrid) -> Order:
        """The server for each logical one; raises ValueError if the grid is too small."""
        tall = math.prod(axis.rows for axis in self.axes)
        wide = math.prod(axis.columns for axis in self.axes)
        if tall > grid.rows or wide > grid.columns:
            raise ValueError(
                f"folding: {tall} x {wide} places do not fit into {grid.rows} x {grid.columns}"
            )
        row_steps = _steps([axis.rows for axis in self.axes], self.down)
        column_steps = _steps([axis.columns for axis in self.axes], self.across)
        servers = np.zeros(1, dtype=np.int64)
        for axis, row_step, column_step in zip(self.axes, row_steps, column_steps, strict=True):
            places = np.array([axis.place(i) for i in range(axis.rows * axis.columns)])
            steps = np.array([row_step * grid.columns, column_step])
            servers = ((places @ steps)[:, None] + servers[None, :]).ravel()
        return tuple(servers.tolist())

    def __str__(self) -> str:
        """Such as "2 x 2; 8 x 12, turning": rows x columns of each axis, the inner one first."""
        text = "; ".join(map(str, self.axes))
        for name, nested in (("rows", self.down), ("columns", self.across)):
            if list(nested) != sorted(nested):
                text += f"; {name} nested {', '.join(str(i + 1) for i in nested)}"
        return text


def _steps(sizes: Sequence[int], nested: Sequence[int]) -> list[int]:
    steps = [0] * len(sizes)
    step = 1
    for axis in nested:
        steps[axis] = step
        step *= sizes[axis]
    return steps


def row_major(grid: ServerGrid) -> Folding:
    """Servers in the order of their numbers, as without knowledge of the network."""
    return Folding((AxisFold(grid.rows, grid.columns),), (0,), (0,))


def by_boards(grid: ServerGrid) -> Folding:
    """Servers of a board next to each other, boards row by row, turning at the ends."""
    down, across = grid.rows // grid.board_rows, grid.columns // grid.board_columns
    board = AxisFold(grid.board_rows, grid.board_columns)
    return Folding((board, AxisFold(down, across, turns=True)), (0, 1), (0, 1))


def axes_of(strategy: Strategy, servers: int) -> tuple[int, ...]:
    """The sizes of the nested axes in which `strategy` numbers its servers, inner first.

    They come from group sizes and distances that divide one another; their product is the number of
    servers.
    """
    found = {servers}
    for placement in set(strategy):
        found.add(placement.parameter * placement.attribute)
        found.add(len(placement.servers))
        if len(placement.servers) > 1:
            found.add(abs(placement.servers[1] - placement.servers[0]))
    axes = []
    inside = 1
    for size in sorted(found):
        if size > inside and size % inside == 0 and servers % size == 0:
            axes.append(size // inside)
            inside = size
    return tuple(axes)


def foldings(grid: ServerGrid, axes: Sequence[int]) -> Iterator[Folding]:
    """All foldings of axes of these sizes into rectangles that fit the grid.

    Foldings that nest all axes alike, the inner inside the outer, come first.
    """
    shapes = [
        chosen
        for chosen in itertools.product(*map(_shapes, axes))
        if math.prod(axis.rows for axis in chosen) <= grid.rows
        and math.prod(axis.columns for axis in chosen) <= grid.columns
    ]
    numbers = range(len(axes))
    for down in itertools.permutations(numbers):
        for across in itertools.permutations(numbers):
            for chosen in shapes:
                if _has_order(down, [axis.rows for axis in chosen]) and _has_order(
                    across, [axis.columns for axis in chosen]
                ):
                    yield Folding(chosen, down, across)


def _shapes(size: int) -> list[AxisFold]:
    found = []
    for rows in range(1, size + 1):
        if size % rows == 0:
            found.append(AxisFold(rows, size // rows))
            if 1 < rows < size:
                found.append(AxisFold(rows, size // rows, turns=True))
    return found


def _has_order(nested: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether axes of one row (column), whose place is irrelevant, are in their default place, so
    that each folding is listed once."""
    moved = iter([axis for axis in nested if sizes[axis] > 1])
    return list(nested) == [axis if size == 1 else next(moved) for axis, size in enumerate(sizes)]
