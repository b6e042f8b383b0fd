"""What a figure is: its cells, and what is made of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.cell import Cell

NEAR = 0.15 + 1e-9  # of the paper's number: `within`, also of a ratio of 0.85 as it is computed

Results = Sequence[tuple[dict[str, Any], Any]]  # parameters and row of each cell, in their order


@dataclass(frozen=True)
class Quantity:
    """A row of the table: one number, and the paper's where it states one.

    `mode` is a column: that of TopologyFinder ("released", "paper", "best"), or how the fat-tree's
    rate is read. `reason` says why the two differ; it is left out where they are within 15 %.
    """

    quantity: str
    ours: float
    paper: float | None = None
    model: str = ""
    mode: str = ""
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        return float(self.ours / self.paper) if self.paper else None

    @property
    def within(self) -> bool | None:
        return None if self.ratio is None else bool(abs(self.ratio - 1) <= NEAR)


@dataclass(frozen=True)
class Made:
    """The rows of the CSV, what draws the plot, and the rows of the table."""

    csv: Sequence[dict[str, Any]]
    draw: Callable[[Canvas], None]
    quantities: Sequence[Quantity]
    size_inches: tuple[float, float] = (7.0, 4.2)


@dataclass(frozen=True)
class Figure:
    """`name` is that of the paper: "11a", "table-2". `about` says what it shows and from which
    section; `full` the sizes of a full run, and `quick` those of a quick one (empty: the same).
    `obstacle` gives the reason why this machine cannot make it, or ""."""

    name: str
    title: str
    about: str
    cells: Callable[[bool], Sequence[Cell]]
    make: Callable[[Results, bool], Made]
    full: str = ""
    quick: str = ""
    obstacle: Callable[[], str] = str
