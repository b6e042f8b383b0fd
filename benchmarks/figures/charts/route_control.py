"""Figure 7 and section 6 of "Routing for Large ML Models": latency, and TopoOpt's fabric."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_SCHEMES = ("ecmp", "annealing", "greedy", "colouring", "local-search")
_LIMIT_S = 60.0  # of the exact optimum
_MODELS = ("bloom", "gpt-3", "llama2-70b")


def _timed(quick: bool) -> list[Cell]:
    sizes = (100, 1000) if quick else (100, 1000, 10_000, 100_000)
    return [
        Cell.of(
            "figures.cells.routes:scheme_times",
            **{"flows": flows, "scheme": scheme, "seed": 0, "exact_limit_s": _LIMIT_S},
            repeats=1 if scheme in ("exact", "annealing") else 5,
            exclusive=True,
        )
        for flows in sizes
        for scheme in (*_SCHEMES, "exact")
        if scheme != "exact" or flows <= 1000  # whose limit is too short for more
    ]


def _make_timed(results: Results, quick: bool) -> Made:
    curves: dict[str, list[tuple[float, float]]] = {}
    for p, row in results:
        if row["scheme_s"] is not None:
            point = p["flows"], row["scheme_s"] * 1e3
            curves.setdefault(p["scheme"], []).append(point)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        plots.lines(axes, curves, "flows", "processor time of the scheme (ms)", log="xy")
        axes.legend()

    times = {scheme: dict(points) for scheme, points in curves.items()}
    quantities = [
        Quantity(f"processor time (ms), {flows} flows", ms, mode=scheme)
        for scheme, points in curves.items()
        for flows, ms in points
    ]
    quantities += [
        Quantity(
            f"processor time, local-search / greedy, {flows} flows", ours / times["greedy"][flows]
        )
        for flows, ours in curves["local-search"]
    ]
    csv = [{**{k: p[k] for k in ("flows", "scheme", "exact_limit_s")}, **row} for p, row in results]
    return Made(csv, draw, quantities)


def _compared(quick: bool) -> list[Cell]:
    copies = (2,) if quick else (2, 4, 8)
    models = _MODELS[:1] if quick else _MODELS
    shared = {
        **{"placed_by": "racks", "failed_spines": 0, "fail_at_s": 0.0, "in_rounds": True},
        **{"schemes": ["ecmp", "local-search"], "draws": 1 if quick else 5},
        **{"iterations": 2 if quick else 5, "seed": 0},
    }
    routed = [
        Cell.of("figures.cells.routes:job_times", model=model, jobs=3, copies=count, **shared)
        for model in models
        for count in copies
    ]
    wired = [
        Cell.of(
            "figures.cells.route_topoopt:one_shot",
            **{"model": model, "copies": count, "mode": mode, "seed": 0},
        )
        for model in models
        for count in copies
        for mode in ("paper", "best")
    ]
    return [
        *(*routed, *wired, Cell.of("figures.cells.route_topoopt:figure_9")),
        Cell.of("figures.cells.route_topoopt:dollars", ports=2048, gbps=100.0),
    ]


def _make_compared(results: Results, quick: bool) -> Made:
    csv = _table(results)
    networks = list(dict.fromkeys(row["network"] for row in csv))

    def draw(canvas: Canvas) -> None:
        sizes = sorted({row["copies"] for row in csv})
        every = canvas.subplots(1, len(sizes), squeeze=False)[0]
        for axes, copies in zip(every, sizes, strict=True):
            of_size = [row for row in csv if row["copies"] == copies]
            models = list(dict.fromkeys(row["model"] for row in of_size))
            series = {
                network: [row["all_reduce_s"] for row in of_size if row["network"] == network]
                for network in networks
            }
            plots.bars(axes, models, series, "AllReduce time (s)")
            axes.set_title(f"rings of {copies}", fontsize=9)
        plots.legend_below(canvas, axes)

    quantities = [
        Quantity(
            f"AllReduce (s), rings of {row['copies']}",
            row["all_reduce_s"],
            model=row["model"],
            mode=row["network"],
        )
        for row in csv
    ]
    for p, row in results:
        if "one circuit" in row:
            quantities += [
                Quantity(f"Figure 9: slower flow's part of a link, {name}", min(rates))
                for name, rates in row.items()
            ]
        if "ports" in p:
            quantities.append(
                Quantity("dollars, Clos / TopoOpt on patch panels", row["Clos"] / row["TopoOpt"])
            )
    return Made(csv, draw, quantities, (11.0, 4.4))


def _table(results: Results) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for p, row in results:
        if "mode" in p:
            name = f"TopoOpt, {p['mode']}"
            found.append({**_ends(p), "network": name, "all_reduce_s": row["all_reduce_s"]})
        elif "schemes" in p:
            for scheme, draws in row["schemes"].items():
                name = f"Clos, {scheme}, {p['jobs']} jobs"
                seconds = fmean(draw[0] for draw in draws)
                found.append({**_ends(p), "network": name, "all_reduce_s": seconds})
    return found


def _ends(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: parameters[name] for name in ("model", "copies")}


FIGURES = (
    Figure(
        *("route-7", "latency of schemes of route control"),
        about='Figure 7 of "Routing for Large ML Models", random flows on 64 ToRs and 32 spines',
        cells=_timed,
        make=_make_timed,
        full="100 to 100 000 flows",
        quick="up to 1 000 flows",
    ),
    Figure(
        *("route-topoopt", "routes on a Clos network and one-shot topologies"),
        about='section 6 of "Routing for Large ML Models": the same jobs, 100 Gb/s for each host',
        cells=_compared,
        make=_make_compared,
        full="5 draws of 5 iterations",
        quick="BLOOM, rings of 2",
    ),
)
