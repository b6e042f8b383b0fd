"""Section 7: TotientPerms on fat-trees."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_PLACED = ("in order", "at random")
_WAYS = {False: "one ring, as many connections a hop", True: "as many stride permutations"}


def _cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.tree_rings:all_reduce",
            **{"servers": 16 if quick else 128, "rings": rings, "permuted": permuted},
            **{"placed": placed, "draws": 3 if quick else 10, "seed": 0},
        )
        for placed in _PLACED
        for permuted in _WAYS
        for rings in ((1, 2) if quick else (1, 2, 4, 8))
    ]


def _make(results: Results, quick: bool) -> Made:
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {placed: {} for placed in _PLACED}
    for p, row in results:
        line = curves[p["placed"]].setdefault(_WAYS[p["permuted"]], [])
        line.append((p["rings"], mean(row["times_over_bound"])))

    def draw(canvas: Canvas) -> None:
        most = max(y for lines in curves.values() for points in lines.values() for _, y in points)
        for axes, placed in zip(canvas.subplots(1, 2), _PLACED, strict=True):
            y_label = "AllReduce time over the bound of a server's link"
            plots.lines(axes, curves[placed], "rings that share the bytes", y_label, log="x")
            axes.set_ylim(0, 1.05 * most)
            axes.set_title(f"ranks placed {placed}", fontsize=9)
        plots.legend_below(canvas, axes)

    quantities = [
        Quantity(
            f"one ring of one connection / {int(points[-1][0])} of them, ranks {placed}",
            points[0][1] / points[-1][1],
            mode=way,
        )
        for placed in _PLACED
        for way, points in curves[placed].items()
    ]
    csv = [
        {**{k: p[k] for k in ("placed", "rings", "permuted")}, "draw": i, "time_over_bound": time}
        for p, row in results
        for i, time in enumerate(row["times_over_bound"])
    ]
    return Made(csv, draw, quantities, (7.5, 4.0))


FIGURES = (
    Figure(
        *("section-7", "AllReduce on a full-bisection fat-tree under ECMP"),
        about="several stride permutations against one ring (section 7, TotientPerms in Fat-trees)",
        cells=_cells,
        make=_make,
        full="128 servers, mean of 10 draws",
        quick="16 servers, mean of 3 draws",
    ),
)
