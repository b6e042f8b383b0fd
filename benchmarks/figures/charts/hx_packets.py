"""Figures 11 and 12 of the HammingMesh paper: all-to-all and permutations packet by packet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_TREE = "nonblocking fat tree"
_NETWORKS = (
    _TREE,
    *("50 % tapered fat tree", "75 % tapered fat tree", "Dragonfly", "2D HyperX (Hx1Mesh)"),
    *("Hx2Mesh", "Hx4Mesh", "2D torus"),
)
# Table II, small cluster, of messages of 1 MiB; the text has no number for other sizes.
_PAPER = dict(zip(_NETWORKS, (99.9, 51.2, 25.7, 62.9, 91.6, 25.4, 11.3, 2.0), strict=True))
_UNEVEN = "flows split evenly over the same cables leave 43.6 and 20.2 %; not traced further"
_REASONS = {
    "50 % tapered fat tree": _UNEVEN,
    "75 % tapered fat tree": _UNEVEN,
    "Dragonfly": "paper: UGAL-L; here shortest paths: not traced further",
    "2D HyperX (Hx1Mesh)": "accelerators forward: 51.6 % is all that four ports leave",
    "2D torus": "64 shifts far apart overlap here; one after the other leave 2.5 %",
}
_LARGEST = 1 << 18
_SIZES = (1 << 13, 1 << 16, _LARGEST)
_PERMUTATIONS = {"message_bytes": 1 << 20, "permutations": 2, "seed": 0}


def _all_to_all_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.hx_packets:all_to_all",
            **{"network": network, "message_bytes": size, "seed": 0},
        )
        for network in (_NETWORKS[-3:-1] if quick else _NETWORKS)
        for size in (_SIZES[:1] if quick else _SIZES)
    ]


def _make_all_to_all(results: Results, quick: bool) -> Made:
    curves: dict[str, list[tuple[float, float]]] = {}
    for p, row in results:
        curves.setdefault(p["network"], []).append((p["message_bytes"], 100 * row["share"]))

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        x, y = "message (bytes)", "all-to-all bandwidth (% of injection)"
        plots.lines(axes, curves, x, y, log="xy")
        plots.legend_below(canvas, axes)

    quantities = [
        Quantity(
            f"all-to-all (% of injection), messages of {size >> 10:.0f} KiB",
            percent,
            _PAPER[network] if size == _LARGEST else None,
            model=network,
            reason=_REASONS.get(network, "") if size == _LARGEST else "",
        )
        for network, points in curves.items()
        for size, percent in ((int(size), percent) for size, percent in points)
    ]
    return Made([{**p, **row} for p, row in results], draw, quantities)


def _permutation_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of("figures.cells.hx_packets:permutation", network=network, **_PERMUTATIONS)
        for network in ((_TREE, *_NETWORKS[-3:-1]) if quick else _NETWORKS)
    ]


def _make_permutation(results: Results, quick: bool) -> Made:
    rows: list[dict[str, Any]] = []
    for p, row in results:
        percentiles = {f"p{part}": value for part, value in row["percentiles"].items()}
        plain = {name: row[name] for name in ("mean", "cost_dollars")}
        rows.append({"network": p["network"], **plain, **percentiles})
    tree = rows[0]["cost_dollars"] / rows[0]["mean"]
    for row in rows:
        row["relative_cost"] = row["cost_dollars"] / row["mean"] / tree

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        boxes = [
            {
                "label": row["network"].replace(" fat tree", "\nfat tree").replace(" (", "\n("),
                **{"whislo": 100 * row["p5"], "q1": 100 * row["p25"], "med": 100 * row["p50"]},
                **{"q3": 100 * row["p75"], "whishi": 100 * row["p95"], "mean": 100 * row["mean"]},
            }
            for row in rows
        ]
        axes.bxp(boxes, showfliers=False, showmeans=True)
        axes.set_ylabel("received (% of injection)")
        axes.tick_params("x", labelsize=6)

    quantities = [
        Quantity(words, scale * row[column], model=row["network"])
        for row in rows
        for words, column, scale in (
            ("permutation, mean received (% of injection)", "mean", 100.0),
            ("permutation, 5th percentile (% of injection)", "p5", 100.0),
            ("permutation, cost / mean bandwidth, fat tree = 1", "relative_cost", 1.0),
        )
    ]
    return Made(rows, draw, quantities, (8.0, 4.2))


FIGURES = (
    Figure(
        "hx-11",
        "HammingMesh, Figure 11: all-to-all bandwidth over the size of a message",
        "shifted all-to-all on the small networks of Table II, 64 of the shifts, packet by packet "
        "with adaptive routing; the paper's numbers are those of its Table II (HammingMesh, V-A1)",
        _all_to_all_cells,
        _make_all_to_all,
        full="64 shifts",
        quick="two networks, 8 KiB",
    ),
    Figure(
        "hx-12",
        "HammingMesh, Figure 12: what accelerators receive in random permutations",
        "two random permutations of 1 MiB on the small networks of Table II, packet by packet "
        "(HammingMesh, V-A1)",
        _permutation_cells,
        _make_permutation,
        full="eight networks",
        quick="three networks",
    ),
)
