"""Jobs and boards as a picture, as the right part of the paper's Figure 5."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torch_topoopt.shared_networks.allocation.allocation import Allocation

_MOST_LABELLED = 32  # boards along a side; with more, names would not be legible
_FREE, _FAILED = "#f1f3f5", "#3b3f45"


def draw_boards(axes: Axes, allocation: Allocation) -> None:
    """A square for each board, row 0 at the top: the colour and the name of its job, white if
    free, dark with a cross if it has failed."""
    from matplotlib.colors import to_rgb

    boards = allocation.boards
    picture = [[to_rgb(_FREE)] * boards.columns for _ in range(boards.rows)]
    labelled = max(boards.rows, boards.columns) <= _MOST_LABELLED
    size = max(4.0, min(8.0, 110 / max(boards.rows, boards.columns)))
    for number, (job, own) in enumerate(allocation.placed.items()):
        colour = _colour(number)
        for row, column in own.boards():
            picture[row][column] = colour
            if labelled and (row, column) not in boards.failed:
                text = job.name if len(job.name) <= 4 else job.name[:3] + "…"
                axes.text(column, row, text, ha="center", va="center", fontsize=size)
    for row, column in boards.failed:
        picture[row][column] = to_rgb(_FAILED)
        if labelled:
            axes.text(column, row, "×", ha="center", va="center", fontsize=size, color="white")
    axes.imshow(picture, interpolation="nearest")
    axes.set_xticks([i - 0.5 for i in range(boards.columns + 1)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(boards.rows + 1)], minor=True)
    axes.grid(visible=False, which="major")
    if max(boards.rows, boards.columns) <= 2 * _MOST_LABELLED:
        axes.grid(which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="both", length=0)
    axes.set_xlabel("column of boards")
    axes.set_ylabel("row of boards")


def _colour(number: int) -> tuple[float, float, float]:
    """Neighbouring numbers are far apart: hues a golden angle from each other, in three shades."""
    return colorsys.hls_to_rgb(number * 0.618034 % 1, (0.68, 0.78, 0.6)[number % 3], 0.62)
