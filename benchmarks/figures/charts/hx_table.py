"""Table II of "HammingMesh: A Network Topology for Large-Scale Deep Learning"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity
from figures.papers.hammingmesh_reasons import REASONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_MESSAGE_BYTES = 16 << 30
_COLUMNS = {
    "cost_mdollar": "cost (M$)",
    "global_percent": "global bandwidth (% of injection)",
    "allreduce_percent": "AllReduce bandwidth (% of half of injection)",
    "diameter": "diameter (cables)",
}


def _cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.hx_table:table_2",
            **{"size": size, "message_bytes": _MESSAGE_BYTES, "seed": 0},
        )
        for size in (("small",) if quick else ("small", "large"))
    ]


def _make(results: Results, quick: bool) -> Made:
    tables = {p["size"]: rows for p, rows in results}

    def draw(canvas: Canvas) -> None:
        every = canvas.subplots(len(tables), 1, squeeze=False)
        for axes, (size, rows) in zip(every[:, 0], tables.items(), strict=True):
            series = {
                who: [row[who]["global_percent"] for row in rows] for who in ("paper", "ours")
            }
            series["ours, best split"] = [row["best_global_percent"] or math.nan for row in rows]
            names = [
                row["name"].replace(" fat tree", "\nfat tree").replace(" (", "\n(") for row in rows
            ]
            plots.bars(axes, names, series, "global bandwidth (% of injection)")
            axes.tick_params("x", labelsize=7)
            axes.set_title(f"{size} cluster", fontsize=9)
        plots.legend_below(canvas, axes)

    quantities = [
        Quantity(
            f"{words}, {size}",
            row["ours"][column],
            row["paper"][column],
            model=row["name"],
            reason=REASONS.get((size, row["name"], column), ""),
        )
        for size, rows in tables.items()
        for row in rows
        for column, words in _COLUMNS.items()
    ]
    return Made(_csv(tables), draw, quantities, size_inches=(8.0, 3.2 * len(tables) + 0.6))


def _csv(tables: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for size, of_size in tables.items():
        for row in of_size:
            plain = {k: v for k, v in row.items() if k not in ("ours", "paper")}
            both = {
                f"{who}_{column}": row[who][column]
                for who in ("ours", "paper")
                for column in row[who]
            }
            rows.append({"size": size, **plain, **both})
    return rows


FIGURES = (
    Figure(
        "hx-table-2",
        "HammingMesh, Table II: cost, bandwidth and diameter",
        "eight networks of about 1 000 and 16 000 accelerators, built as in its Appendix C: costs "
        "counted, global and AllReduce bandwidth at flow level (HammingMesh, III, Table II)",
        _cells,
        _make,
        full="small and large clusters",
        quick="small cluster",
    ),
)
