"""Figure 11 as released, where every network has the fastest of a few strategies."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.charts.as_released import FAT_TREE, IDEAL
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_MODELS = ("candle", "vgg:released", "bert:released", "dlrm", "ncf")
_COSTS = ("estimated", "released")
_GBPS = (10.0, 25.0, 40.0, 100.0, 200.0)
_DEGREE = 4
_TREE = "Fat-tree, d B' = B"
_ALONE = (
    "with strategies without runs on all networks it is {alone:.2f}; {network} takes layers in "
    "runs at {taken} of {rates} bandwidths"
)
_BETWEEN = "; the paper's is between the two"


def _cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.layer_runs:iteration",
            **{"model": model, "servers": 16 if quick else 128, "degree": _DEGREE, "gbps": gbps},
            **{"costs": costs},
            seed=0,
        )
        for costs in (_COSTS[:1] if quick else _COSTS)
        for model in (("ncf",) if quick else _MODELS)
        for gbps in ((10.0, 100.0) if quick else _GBPS)
    ]


def _fastest(row: Any, network: str, *, runs: bool = True) -> tuple[float, str]:
    """Seconds and strategy of the fastest on `network`; without `runs`, of those without."""
    return min(
        (times[network], strategy)
        for strategy, times in row["iteration_s"].items()
        if runs or not strategy.endswith(" runs")
    )


def _make(results: Results, quick: bool) -> Made:
    jobs: dict[tuple[str, str], list[tuple[float, Any]]] = {}
    for p, row in results:
        jobs.setdefault((p["model"], p["costs"]), []).append((p["gbps"], row))
    names = list(next(iter(results[0][1]["iteration_s"].values())))
    drawn = {job: found for job, found in jobs.items() if job[1] == _COSTS[0]}

    def draw(canvas: Canvas) -> None:
        panels = list(canvas.subplots(2, 3, squeeze=False).flat)
        for axes, ((model, _), found) in zip(panels, drawn.items(), strict=False):
            curves = {
                name: [(gbps, _fastest(row, name)[0] * 1e3) for gbps, row in found]
                for name in names
            }
            curves["Ideal Switch, no runs"] = [
                (gbps, _fastest(row, "Ideal Switch", runs=False)[0] * 1e3) for gbps, row in found
            ]
            plots.lines(axes, curves, "link bandwidth B (Gb/s)", "iteration time (ms)", log="xy")
            axes.set_title(model, fontsize=9)
        for empty in panels[len(drawn) :]:
            empty.set_axis_off()
        plots.legend_below(canvas, canvas.axes[0], 4)

    quantities = [
        quantity
        for (model, costs), found in jobs.items()
        for quantity in _ratios(model, costs, [row for _, row in found], quick)
    ]
    csv = [
        {
            **{"model": p["model"], "costs": p["costs"], "gbps": p["gbps"], "network": network},
            **{"strategy": strategy, "iteration_s": time_s},
            "fastest": _fastest(row, network)[1] == strategy,
        }
        for p, row in results
        for strategy, times in row["iteration_s"].items()
        for network, time_s in times.items()
    ]
    return Made(csv, draw, quantities, (9.0, 5.2))


def _ratios(model: str, costs: str, rows: list[Any], quick: bool) -> list[Quantity]:
    """Means over the bandwidths of one model."""
    name = model.partition(":")[0]
    mode = f"as released, fastest strategy, {costs} times"

    def quantity(upper: str, lower: str, paper: float | None, label: str, tree: str) -> Quantity:
        ours, alone = (
            mean(
                _fastest(row, upper, runs=runs)[0] / _fastest(row, lower, runs=runs)[0]
                for row in rows
            )
            for runs in (True, False)
        )
        other = lower if upper == "TopoOpt" else upper
        taken = sum(_fastest(row, other)[1].endswith(" runs") for row in rows)
        reason = _ALONE.format(alone=alone, network=other, taken=taken, rates=len(rows))
        if paper and min(ours, alone) < paper < max(ours, alone):
            reason += _BETWEEN
        return Quantity(
            f"{label}, d = {_DEGREE}",
            *(ours, paper, name, f"{mode}{tree}"),
            reason="quick: 16 servers, two bandwidths" if quick else reason,
        )

    return [
        quantity(_TREE, "TopoOpt", FAT_TREE[name], "Fat-tree / TopoOpt", f"; {_TREE}"),
        quantity("TopoOpt", "Ideal Switch", IDEAL.get(name), "TopoOpt / Ideal Switch", ""),
    ]


FIGURES = (
    Figure(
        *(
            "11-released-runs",
            "iteration time with the fastest of a few strategies, estimated costs, d = 4",
        ),
        about="as 11-released; every network with data parallelism or layers in runs (5.3)",
        cells=_cells,
        make=_make,
        full="128 servers",
        quick="16 servers, NCF, two bandwidths",
    ),
)
