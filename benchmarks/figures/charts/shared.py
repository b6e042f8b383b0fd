"""Figure 16: a cluster of 432 servers that many jobs share."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

    Points = dict[tuple[str, str, int], dict[str, float]]  # way, network, jobs -> means of runs

_TREES = ("Fat-tree, Table 2", "Fat-tree, d B' = B")
_OVERSUBSCRIBED = "Oversub. Fat-tree"
# placement, what is hashed to a path, runs; the first is drawn
_WAYS = (("random", "flow", 5), ("random", "pair", 2), ("first-fit", "flow", 2))
_SIZES: dict[str, Any] = {
    "servers": 432,
    "per_job": 16,
    "jobs": [5, 10, 15, 20, 27],
    "evaluations": 500,
}
_QUICK: dict[str, Any] = {"servers": 54, "per_job": 9, "jobs": [2, 6], "evaluations": 50}
# Section 5.6, as printed
_MEAN = {"Fat-tree": 1.7, "Oversub. Fat-tree": 1.15}
_TAIL_FULL = {"Fat-tree": 3.4}
_TAIL = {"Fat-tree": 3.0, "Oversub. Fat-tree": 1.4}
_WHY = (
    "a server of the tree has {rate:.4g} Gb/s, that of TopoOpt {own:.4g}: without collisions a job "
    "of nothing but communication is {bound:.2f} times slower; the jobs compute {compute:.0%} of "
    "their time on TopoOpt, and CANDLE, the tail of both, {tail:.0%}"
)


def _way(placement: str, ecmp: str) -> str:
    servers = "servers by lot" if placement == "random" else "servers in a row"
    return f"{servers}, a path for each {ecmp}"


def _cells(quick: bool) -> list[Cell]:
    cells = [
        Cell.of(
            "figures.cells.shared:at_loads",
            **{**(_QUICK if quick else _SIZES), "degree": 8, "gbps": 100.0},
            **{"placement": placement, "ecmp": ecmp, "seed": seed},
            limit_s=2400,
        )
        for placement, ecmp, runs in (_WAYS[:1] if quick else _WAYS)
        for seed in range(1 if quick else runs)
    ]
    if not quick:
        size = {**_SIZES, "jobs": _SIZES["jobs"][0], "degree": 8, "gbps": 100.0, "seed": 0}
        cells.append(Cell.of("figures.cells.shared_packets:both_levels", **size, limit_s=2400))
    return cells


def _make(results: Results, quick: bool) -> Made:
    packets = [row["mean_s"] for p, row in results if "placement" not in p]
    results = [(p, row) for p, row in results if "placement" in p]
    points, csv = _points(results)
    sizes = _QUICK if quick else _SIZES
    loads = {n: 100 * n * sizes["per_job"] / sizes["servers"] for n in sizes["jobs"]}
    ways = list(dict.fromkeys(way for way, _, _ in points))
    names = list(dict.fromkeys(name for _, name, _ in points))

    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(1, 2)
        for axes, field, title in zip(
            panels, ("mean_s", "p99_s"), ("mean", "99th percentile"), strict=True
        ):
            curves = {
                name: [(loads[n], points[ways[0], name, n][field] * 1e3) for n in loads]
                for name in names
            }
            plots.lines(axes, curves, "load (% of the servers)", "iteration time (ms)", log="y")
            axes.set_title(title, fontsize=9)
        plots.legend_below(canvas, panels[0], 5)

    quantities = [
        quantity
        for way in ways
        for tree in (*_TREES, _OVERSUBSCRIBED)
        for quantity in _ratios(points, way, tree, list(loads), _why(results, tree, quick))
    ]
    quantities += [
        Quantity(
            f"TopoOpt / Ideal Switch, {what}, mean over loads",
            mean(_ratio(points, (ways[0], n), "TopoOpt", "Ideal Switch", field) for n in loads),
        )
        for what, field in (("mean", "mean_s"), ("tail", "p99_s"))
    ]
    quantities += [
        Quantity(
            f"packet level over flow level, {loads[sizes['jobs'][0]]:.0f} % load",
            row["packet"][network] / row["flow"][network],
            mode=network if network == "TopoOpt" else f"{network}; {ways[0]}",
        )
        for row in packets
        for network in row["flow"]
    ]
    return Made(csv, draw, quantities, (8.5, 4.0))


def _points(results: Results) -> tuple[Points, list[dict[str, Any]]]:
    """The means over the runs, and a row of the CSV for each run."""
    runs: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    csv = []
    for p, row in results:
        way = _way(p["placement"], p["ecmp"])
        for point in row["points"]:
            runs.setdefault((way, point["network"], point["jobs"]), []).append(point)
            models = {
                f"{model.partition(':')[0]} mean_s": times["mean_s"]
                for model, times in point["models"].items()
            }
            kept = {name: value for name, value in point.items() if name != "models"}
            csv.append({"way": way, "run": p["seed"], **kept, **models})
    columns = list(dict.fromkeys(name for row in csv for name in row))
    csv = [{name: row.get(name, "") for name in columns} for row in csv]
    points = {
        key: {field: mean(run[field] for run in found) for field in ("mean_s", "p99_s")}
        for key, found in runs.items()
    }
    return points, csv


def _ratio(points: Points, at: tuple[str, int], upper: str, lower: str, field: str) -> float:
    way, jobs = at
    return points[way, upper, jobs][field] / points[way, lower, jobs][field]


def _ratios(points: Points, way: str, tree: str, jobs: list[int], why: str) -> list[Quantity]:
    kind = tree.partition(",")[0]
    rows = [
        ("mean, mean over loads", jobs, "mean_s", _MEAN),
        ("tail, all servers loaded", jobs[-1:], "p99_s", _TAIL_FULL),
        ("tail, mean over loads", jobs, "p99_s", _TAIL),
    ]
    return [
        Quantity(
            f"{kind} / TopoOpt, {what}",
            mean(_ratio(points, (way, n), tree, "TopoOpt", field) for n in counts),
            paper.get(kind),
            mode=f"{tree}; {way}" if kind != tree else way,
            reason=why,
        )
        for what, counts, field, paper in rows
    ]


def _why(results: Results, tree: str, quick: bool) -> str:
    """What bounds the ratios, computed from the rates and times of this very run."""
    if quick:
        return ""
    row = results[0][1]
    last = {point["network"]: point for point in row["points"]}
    rate, own = last[tree]["server_gbps"], last["TopoOpt"]["server_gbps"]
    models = last["TopoOpt"]["models"]
    parts = {model: row["compute_s"][model] / models[model]["mean_s"] for model in models}
    candle = next(model for model in parts if model.startswith("candle"))
    return _WHY.format(
        rate=rate,
        own=own,
        bound=own / rate,
        compute=mean(parts.values()),
        tail=parts[candle],
    )


FIGURES = (
    Figure(
        *("16", "iteration time on a shared cluster over its load"),
        about="40 % DLRM, 30 % BERT, 20 % CANDLE, 10 % VGG, 16 servers each (section 5.6)",
        cells=_cells,
        make=_make,
        full="432 servers, 5 to 27 jobs",
        quick="54 servers, 2 and 6 jobs of 9",
    ),
)
