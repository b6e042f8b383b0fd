"""Figures 3, 11, 27 and 28: one job on a dedicated cluster, of 128 servers but in Figure 3."""

from __future__ import annotations

from functools import partial
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_PANELS = {"a": "candle", "b": "vgg", "c": "bert", "d": "dlrm", "e": "ncf", "f": "resnet50"}
_GBPS = (10.0, 25.0, 40.0, 100.0, 200.0)
_EVALUATIONS = 500
# Section 5.3: means over the bandwidths of Figure 11 (d = 4).
_FAT_TREE = {"candle": 2.8, "vgg": 2.8, "bert": 3.0, "dlrm": 2.8, "ncf": 2.1}
_IDEAL = {"candle": 1.0, "dlrm": 1.3, "ncf": 1.7}
_MODES = ("released", "paper", "best")
_TREES = ("Fat-tree, Table 2", "Fat-tree, d B' = B")
_DEGREES = (2, 4, 6, 8)  # Figure 28
_GPUS, _GBPS_3 = (8, 16, 32, 64, 128), 100.0  # Figure 3
_SAME = 1 + 1e-6  # seconds that differ by less are equal
_BOUND = (
    "the tree has {rates} Gb/s a server, so that a job of nothing but communication is {bound:.2f} "
    "times slower on it on average; an iteration computes {compute:.0%} of its time on it"
)
_SEARCHED_TREE = (
    "the search shortens an iteration on the tree more than on TopoOpt: with data parallelism on "
    "both the ratio is {whole:.2f}. The tree has {rates} Gb/s a server, so that a job of nothing "
    "but communication is {bound:.2f} times slower on it on average"
)
_SEARCHED_SWITCH = (
    "the search finds a faster strategy for rings of any servers, which the ideal switch has: with "
    "data parallelism on both the ratio is {whole:.2f}"
)
_RELAYED = (
    "the planned strategies send {tax:.3f} bytes for each that they have to on average; if "
    "relaying were all that costs time, and links were balanced, the paper's ratio would need "
    "{paper:g}"
)
_WHOLE = ("candle", "vgg", "bert")  # the paper runs them with data parallelism, or nearly so
_SEARCH_HELPS = 1.02  # ratio with data parallelism over that of searched strategies, or inverse


def _cell(model: str, degree: int, gbps: float, quick: bool) -> Cell:
    return Cell.of(
        "figures.cells.iterations:on_every_network",
        **{"model": model, "servers": 16 if quick else 128, "degree": degree, "gbps": gbps},
        evaluations=100 if quick else _EVALUATIONS,
        seed=0,
    )


def _bandwidths(quick: bool) -> tuple[float, ...]:
    return (25.0, 100.0) if quick else _GBPS


def _cells(model: str, degree: int, quick: bool) -> list[Cell]:
    searched = [_cell(model, degree, gbps, quick) for gbps in _bandwidths(quick)]
    if degree != 4 or model not in _WHOLE:
        return searched
    size = {"model": model, "servers": 16 if quick else 128, "degree": degree}
    return searched + [
        Cell.of("figures.cells.data_parallel:on_networks", **size, gbps=gbps, seed=0)
        for gbps in _bandwidths(quick)
    ]


def _make(model: str, degree: int, every: Results, quick: bool) -> Made:
    results = [(p, row) for p, row in every if "evaluations" in p]
    whole = [row for p, row in every if "evaluations" not in p]
    names = list(dict.fromkeys(name for _, row in results for name in row["iteration_s"]))

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        curves = {
            name: [
                (p["gbps"], row["iteration_s"][name] * 1e3)
                for p, row in results
                if name in row["iteration_s"]
            ]
            for name in names
        }
        plots.lines(axes, curves, "link bandwidth B (Gb/s)", "iteration time (ms)", log="xy")
        canvas.legend(loc="outside right center")

    rows = [row for _, row in results]
    # a mode that has no network at some bandwidth has no mean
    modes = [m for m in _MODES if all(f"TopoOpt, {m}" in row["iteration_s"] for row in rows)]
    quantities = []
    for tree, mode in product(_TREES, modes):
        if all(tree in row["iteration_s"] for row in rows):
            ratio = mean(_ratio(row, tree, f"TopoOpt, {mode}") for row in rows)
            paper = _FAT_TREE.get(model) if degree == 4 else None
            reason = "" if quick else _why_tree(ratio, tree, degree, results, whole)
            name = f"Fat-tree / TopoOpt, d = {degree}"
            quantities.append(Quantity(name, ratio, paper, model, f"{mode}; {tree}", reason))
    for mode in modes:
        ratio = mean(_ratio(row, f"TopoOpt, {mode}", "Ideal Switch") for row in rows)
        paper = _IDEAL.get(model) if degree == 4 else None
        reason = "" if quick else _why_switch(ratio, paper, rows, whole)
        name = f"TopoOpt / Ideal Switch, d = {degree}"
        quantities.append(Quantity(name, ratio, paper, model, mode, reason))
    quantities.append(
        Quantity(
            "bandwidths at which the plan of mode best alone is slower than mode paper",
            sum(r["planned_best_s"] > _SAME * r["iteration_s"]["TopoOpt, paper"] for r in rows),
            model=model,
            mode="best",
        )
    )
    csv: list[dict[str, Any]] = [
        {
            **{"model": model, "degree": degree, "gbps": p["gbps"], "network": name},
            **{"iteration_s": time_s, "compute_s": row["compute_s"]},
            **{"strategy_from": row["strategy_from"].get(name, "")},
            **{"table_2_gbps": row["table_2_gbps"], "planned_best_s": row["planned_best_s"]},
        }
        for p, row in results
        for name, time_s in row["iteration_s"].items()
    ]
    return Made(csv, draw, quantities, (7.5, 4.2))


def _ratio(row: dict[str, Any], upper: str, lower: str) -> float:
    times: dict[str, float] = row["iteration_s"]
    return times[upper] / times[lower]


def _why_tree(
    ratio: float, tree: str, degree: int, results: Results, whole: Sequence[dict[str, float]]
) -> str:
    """What bounds the ratio, computed from the rates of this very run; `whole` are the seconds of
    data parallelism, empty where the paper's strategy is another."""
    rates = {
        p["gbps"]: row["table_2_gbps"] if tree == _TREES[0] else p["gbps"] for p, row in results
    }
    words = {
        "rates": ", ".join(f"{rate:.3g}" for rate in rates.values()),
        "bound": mean(degree * gbps / rate for gbps, rate in rates.items()),
    }
    unsearched = mean(row[tree] / row["TopoOpt"] for row in whole) if whole else 0.0
    if unsearched > _SEARCH_HELPS * ratio:
        return _SEARCHED_TREE.format(whole=unsearched, **words)
    compute = mean(row["compute_s"] / row["iteration_s"][tree] for _, row in results)
    return _BOUND.format(compute=compute, **words)


def _why_switch(
    ratio: float,
    paper: float | None,
    rows: Sequence[dict[str, Any]],
    whole: Sequence[dict[str, float]],
) -> str:
    if whole:
        unsearched = mean(row["TopoOpt"] / row["Ideal Switch"] for row in whole)
        if unsearched < ratio / _SEARCH_HELPS:
            return _SEARCHED_SWITCH.format(whole=unsearched)
    if paper is None:
        return ""
    return _RELAYED.format(tax=mean(row["bandwidth_tax"] for row in rows), paper=paper)


def _degree_cells(quick: bool) -> list[Cell]:
    size = {"servers": 16 if quick else 128, "evaluations": 100 if quick else _EVALUATIONS}
    return [
        # d = 4 and 8 are in Figures 11 and 27, at full sizes
        _cell(model, degree, gbps, quick)
        if degree in (4, 8) and not quick
        else Cell.of(
            "figures.cells.iterations:on_topoopt",
            **{**size, "model": model, "degree": degree, "gbps": gbps},
            seed=0,
        )
        for model in (("dlrm", "candle") if quick else _PANELS.values())
        for gbps in (40.0, 100.0)
        for degree in _DEGREES
    ]


def _figure_28(results: Results, quick: bool) -> Made:
    times: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for p, row in results:
        time_s = row["iteration_s"]
        if isinstance(time_s, dict):
            time_s = time_s["TopoOpt, paper"]
        times.setdefault((p["model"], p["gbps"]), []).append((p["degree"], time_s))
    rates = sorted({gbps for _, gbps in times})

    def draw(canvas: Canvas) -> None:
        for axes, gbps in zip(canvas.subplots(1, len(rates), sharey=True), rates, strict=True):
            curves = {
                model: [(degree, time_s * 1e3) for degree, time_s in points]
                for (model, rate), points in times.items()
                if rate == gbps
            }
            plots.lines(
                axes, curves, "degree d (ports of a server)", "iteration time (ms)", log="y"
            )
            axes.set_xticks(_DEGREES)
            axes.set_title(f"B = {gbps:g} Gb/s", fontsize=9)
        plots.legend_below(canvas, axes, 6)

    quantities = [
        Quantity(
            f"time at d = 2 over time at d = 8, B = {gbps:g} Gb/s",
            points[0][1] / points[-1][1],
            model=model,
            mode="paper",
        )
        for (model, gbps), points in times.items()
    ]
    csv = [
        {"model": model, "gbps": gbps, "degree": degree, "iteration_s": time_s}
        for (model, gbps), points in times.items()
        for degree, time_s in points
    ]
    return Made(csv, draw, quantities, (8.0, 4.0))


def _overhead_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of("figures.cells.data_parallel:network_overhead", model=model, gpus=gpus,
                gbps=_GBPS_3, seed=0)
        for model in (("vgg", "dlrm") if quick else _PANELS.values())
        for gpus in (_GPUS[:2] if quick else _GPUS)
    ]  # fmt: skip


def _figure_3(results: Results, quick: bool) -> Made:
    curves: dict[str, list[tuple[float, float]]] = {}
    for p, row in results:
        curves.setdefault(p["model"], []).append((p["gpus"], 100 * row["overhead"]))

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        plots.lines(axes, curves, "GPUs", "network overhead (% of an iteration)", log="x")
        axes.axhline(60, color="0.4", linewidth=0.8, linestyle="--", label="the paper: at most")
        axes.set_xticks(_GPUS, [str(gpus) for gpus in _GPUS])
        canvas.legend(loc="outside right center")

    quantities = [
        Quantity(f"network overhead (%), {gpus:g} GPUs", percent, model=model)
        for model, points in curves.items()
        for gpus, percent in (points[0], points[-1])
    ]
    return Made([{**p, **row} for p, row in results], draw, quantities, (7.0, 4.2))


def _panel(number: str, letter: str, model: str, degree: int) -> Figure:
    return Figure(
        *(f"{number}{letter}", f"iteration time of {model}, d = {degree}"),
        about="on TopoOpt and on other networks, over the bandwidth of a link (section 5.3)",
        cells=partial(_cells, model, degree),
        make=partial(_make, model, degree),
        full="128 servers",
        quick="16 servers, two bandwidths",
    )


FIGURES = (
    Figure(
        *("3", "network overhead over the number of GPUs"),
        about="List 1's models with data parallelism (tables of DLRM and NCF apart) on a fat-tree "
        "of 100 Gb/s to a server of 4 GPUs; the paper's models and networks are not stated, and it "
        "measures up to 60 % (section 2.2)",
        cells=_overhead_cells,
        make=_figure_3,
        full="8 to 128 GPUs",
        quick="two models, 8 and 16 GPUs",
    ),
    *(
        _panel(number, letter, model, degree)
        for number, degree in (("11", 4), ("27", 8))
        for letter, model in _PANELS.items()
    ),
    Figure(
        *("28", "iteration time over the degree"),
        about="TopoOpt at 40 and 100 Gb/s (Appendix H)",
        cells=_degree_cells,
        make=_figure_28,
        full="128 servers",
        quick="16 servers, two models",
    ),
)
