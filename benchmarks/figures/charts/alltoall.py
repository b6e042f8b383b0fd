"""Figures 11 to 14 of "To Reconfigure or Not to Reconfigure": all-to-alls on circuits that move."""

from __future__ import annotations

from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

from alltoall import DELAYS_S, WORKLOADS, fastest, most_gained
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_CELLS = "figures.cells.alltoall"
MODES = ("best", "paper")
_NAMES = ("ours, best", "ours, paper", "circulant", "kautz", "rings", "mixnet", "fast")
_DEGREES = (1, 2)
_REDUCTIONS = {"11": 0.3966, "12": 0.4735}  # section 5.2: means of all cells
_GAPS = {64: 2.22, 4096: 4.54}  # section 5.3: largest over all d, up to so many servers
_POWERS = (128, 256, 512, 1024, 2048, 4096)
_SHOWN = (32, 512)  # servers of Figure 13b
_ORDERS = {"best": "chosen sets", "paper": "the paper's order"}
_CARRIED = (
    "chunks are carried from one topology to the next; the paper's sequences, on which they are "
    "not, give {paper:.1%}"
)
_BY_CIRCUITS = (
    "{one:.1%} with one circuit, {two:.1%} with two. The baselines have routes of a linear program "
    "and schedules of edge colourings here; delays and schedules of the paper are not stated"
)
_CHOSEN = "shifts are chosen for every number of topologies; the paper takes them in one order"


def _cell(servers: int, degree: int, workload: str, mean_mb: float) -> Cell:
    size = {"servers": servers, "degree": degree, "workload": workload, "mean_mb": mean_mb}
    return Cell.of(f"{_CELLS}:timed", **size, seed=0, limit_s=7200)


def _network_cells(quick: bool) -> list[Cell]:
    every = product((5, 8) if quick else (8, 16, 32, 64), _DEGREES, WORKLOADS)
    return [_cell(*one, 32.0) for one in every]


def _size_cells(quick: bool) -> list[Cell]:
    every = product(_DEGREES, WORKLOADS, (8.0, 32.0) if quick else (8.0, 16.0, 32.0, 64.0))
    return [_cell(8 if quick else 16, *one) for one in every]


def _gap_cells(quick: bool) -> list[Cell]:
    servers = [*range(2, 65), *(_POWERS[:3] if quick else _POWERS)]
    return [Cell.of(f"{_CELLS}:gaps", servers=n) for n in servers]


def _delay_cells(quick: bool) -> list[Cell]:
    every = product((8,) if quick else (16,), _DEGREES, ("random",), (64.0, 128.0))
    return [_cell(*one) for one in every]


def _setting(p: Mapping[str, Any]) -> str:
    circuits = "1 circuit" if p["degree"] == 1 else f"{p['degree']} circuits"
    return f"{p['servers']} servers, {circuits}"


def _reductions(results: Results, mode: str, degree: int | None = None) -> list[float]:
    return [
        most_gained(row["others"], row[mode]).reduction
        for p, row in results
        if degree in (None, p["degree"])
    ]


def why_reduction(results: Results, mode: str) -> str:
    if mode == "best":
        return _CARRIED.format(paper=mean(_reductions(results, "paper")))
    one, two = (mean(_reductions(results, mode, degree)) for degree in _DEGREES)
    return _BY_CIRCUITS.format(one=one, two=two)


def _compared(number: str, results: Results, quick: bool) -> list[Quantity]:
    """The mean of all cells, means of parts, and how often a baseline is faster."""
    quantities = []
    for mode in MODES:
        name = f"time less than that of the best baseline, mean of {len(results)} cells"
        own = mean(_reductions(results, mode))
        reason = "" if quick else why_reduction(results, mode)
        quantities.append(Quantity(name, own, _REDUCTIONS[number], mode=mode, reason=reason))
    for mode, workload in product(MODES, WORKLOADS):
        own = mean(_reductions([one for one in results if one[0]["workload"] == workload], mode))
        quantities.append(Quantity("time less, mean", own, model=workload, mode=mode))
    worst = max(most_gained(row["others"], row["best"]).worst for _, row in results)
    name = "largest time over that of the best baseline, all cells and delays"
    return [*quantities, Quantity(name, worst, mode="best")]


def _csv(results: Results) -> list[dict[str, Any]]:
    """A row for each cell and mode, at the delay where reconfiguring gains most."""
    rows = []
    for (p, row), mode in product(results, MODES):
        gain = most_gained(row["others"], row[mode])
        rows.append(
            {
                **{name: p[name] for name in ("servers", "degree", "workload", "mean_mb")},
                **{"mode": mode, "delay_s": gain.delay_s, "topologies": gain.topologies},
                **{"seconds": gain.seconds, "baseline_s": gain.baseline_s},
                **{"baseline": gain.baseline, "reduction": gain.reduction},
            }
        )
    return rows


def _schedules(row: dict[str, Any]) -> dict[str, Sequence[Any]]:
    """(topologies, slots) of every schedule, by the name in the plots."""
    own = {f"ours, {mode}": row[mode] for mode in MODES}
    found = {**own, **{name: [timed] for name, timed in row["others"].items()}}
    return {name: found[name] for name in _NAMES if name in found}


def _at_most_gain(row: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """(delay, ms of each) where mode best gains most."""
    delay_s = most_gained(row["others"], row["best"]).delay_s
    return delay_s, {n: fastest(t, delay_s)[0] * 1e3 for n, t in _schedules(row).items()}


def _figure_11(results: Results, quick: bool) -> Made:
    def draw(canvas: Canvas) -> None:
        networks = list(dict.fromkeys((p["degree"], p["servers"]) for p, _ in results))
        panels = canvas.subplots(2, -(-len(networks) // 2), squeeze=False).ravel()
        for axes, network in zip(panels, sorted(networks), strict=False):
            same = [(p, r) for p, r in results if (p["degree"], p["servers"]) == network]
            gains = {p["workload"]: _at_most_gain(row) for p, row in same}
            groups = [f"{name}\n{delay_s:.2g} s" for name, (delay_s, _) in gains.items()]
            _bars(axes, groups, [ms for _, ms in gains.values()])
            axes.set_title(_setting(same[0][0]), fontsize=9)
        plots.legend_below(canvas, panels[len(networks) - 1], columns=7)

    return Made(_csv(results), draw, _compared("11", results, quick), (15, 7))


def _bars(axes: Axes, groups: list[str], times: list[dict[str, float]]) -> None:
    names = [name for name in _NAMES if any(name in ms for ms in times)]
    width = 0.84 / len(names)
    for index, name in enumerate(names):
        places = [at + (index - (len(names) - 1) / 2) * width for at in range(len(groups))]
        values = [ms[name] for ms in times]
        colour = plots.colour(_NAMES.index(name))
        drawn = axes.bar(places, values, width * 0.92, label=name, color=colour)
        axes.bar_label(drawn, fmt="%.3g", fontsize=5, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    _log_axis(axes, "time (ms)")
    axes.set_ylim(bottom=0.7 * min(min(ms.values()) for ms in times))
    axes.grid(axis="x", visible=False)


def _log_axis(axes: Axes, label: str) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)


def _figure_12(results: Results, quick: bool) -> Made:
    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(len(_DEGREES), len(WORKLOADS)).ravel()
        for axes, network in zip(panels, product(_DEGREES, WORKLOADS), strict=True):
            same = [(p, r) for p, r in results if (p["degree"], p["workload"]) == network]
            curves: dict[str, list[tuple[float, float]]] = {}
            for p, row in same:
                for name, ms in _at_most_gain(row)[1].items():
                    curves.setdefault(name, []).append((p["mean_mb"], ms))
            title = f"{_setting(same[0][0])}, {network[1]}"
            _curves(axes, curves, "mean size of a pair (MB)", title)
        plots.legend_below(canvas, axes, columns=7)

    return Made(_csv(results), draw, _compared("12", results, quick), (11, 7))


def _curves(
    axes: Axes, curves: Mapping[str, list[tuple[float, float]]], x_label: str, title: str
) -> None:
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name, **plots.style(_NAMES.index(name)))
    axes.set_xscale("log")
    _log_axis(axes, "time (ms)")
    axes.set_xlabel(x_label)
    axes.set_title(title, fontsize=9)


def _figure_13(results: Results, quick: bool) -> Made:
    slots = {p["servers"]: {n: dict(found) for n, found in row.items()} for p, row in results}
    worst = {
        mode: {n: max(own[name][d] / own["Theorem 1"][d] for d in own[name])
               for n, own in slots.items()}
        for mode, name in _ORDERS.items()
    }  # fmt: skip

    def draw(canvas: Canvas) -> None:
        shown = [n for n in _SHOWN if n in slots]
        over_servers, *by_count = canvas.subplots(1, 1 + len(shown))
        curves = {_ORDERS[mode]: sorted(found.items()) for mode, found in worst.items()}
        words = ("servers, 1 circuit", "slots over the bound, worst d")
        plots.lines(over_servers, curves, *words, log="x")
        over_servers.legend()
        for axes, n in zip(by_count, shown, strict=True):
            plots.lines(axes, {name: sorted(found.items()) for name, found in slots[n].items()},
                        "topologies", "slots", log="xy")  # fmt: skip
            axes.set_title(f"{n} servers", fontsize=9)
            axes.legend()

    quantities = []
    for most, stated in _GAPS.items():
        for mode, found in worst.items():
            own = max(ratio for n, ratio in found.items() if n <= most)
            reason = "" if quick else _CHOSEN
            name = f"slots over Theorem 1's bound, at most, up to {most} servers"
            paper = stated if most <= max(slots) else None
            quantities.append(Quantity(name, own, paper, mode=mode, reason=reason))
    csv = [
        {"servers": n, "of": name, "topologies": d, "slots": count}
        for n, own in slots.items()
        for name, found in own.items()
        for d, count in found.items()
    ]
    return Made(csv, draw, quantities, (14, 4.3))


def _figure_14(results: Results, quick: bool) -> Made:
    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(results), squeeze=False).ravel()
        for axes, (p, row) in zip(panels, results, strict=True):
            curves = {
                name: [(delay_s, fastest(timed, delay_s)[0] * 1e3) for delay_s in DELAYS_S]
                for name, timed in _schedules(row).items()
            }
            title = f"{_setting(p)}, {p['mean_mb']:g} MB"
            _curves(axes, curves, "delay of the switch (s)", title)
            axes.set_ylim(top=6 * max(points[0][1] for points in curves.values()))
        plots.legend_below(canvas, axes, columns=7)

    csv, quantities = [], []
    for p, row in results:
        chosen = [(delay_s, *fastest(row["best"], delay_s)) for delay_s in DELAYS_S]
        for delay_s, seconds, d in chosen:
            others = {n: fastest([timed], delay_s)[0] for n, timed in row["others"].items()}
            csv.append({**p, "delay_s": delay_s, "topologies": d, "seconds": seconds, **others})
        setting = f"{_setting(p)}, {p['mean_mb']:g} MB"
        stays_s = next((delay_s for delay_s, _, d in chosen if d == 1), None)
        if stays_s is not None:
            name = f"delay from which one topology is fastest (s), {setting}"
            quantities.append(Quantity(name, stays_s, model=p["workload"], mode="best"))
        worst = most_gained(row["others"], row["best"]).worst
        name = f"largest time over that of the best baseline, {setting}"
        quantities.append(Quantity(name, worst, model=p["workload"], mode="best"))
    return Made(csv, draw, quantities, (17, 4.4))


FIGURES = (
    Figure(
        *("alltoall-11", "all-to-alls on circuits that move, over servers and circuits"),
        about="flows of 32 MB on average, at the delay where moving gains most (section 5.2)",
        cells=_network_cells,
        make=_figure_11,
        full="8 to 64 servers",
        quick="5 and 8 servers",
    ),
    Figure(
        *("alltoall-12", "all-to-alls on circuits that move, over sizes"),
        about="flows of 8 to 64 MB on average, at the delay where moving gains most (section 5.2)",
        cells=_size_cells,
        make=_figure_12,
        full="16 servers",
        quick="8 servers, two sizes",
    ),
    Figure(
        *("alltoall-13", "slots of an all-to-all over Theorem 1's bound"),
        about="one circuit, chunks that stay on their topology (section 5.3)",
        cells=_gap_cells,
        make=_figure_13,
        full="2 to 4096 servers",
        quick="2 to 512 servers",
    ),
    Figure(
        *("alltoall-14", "all-to-alls of random sizes over the delay of the switch"),
        about="flows of 64 and 128 MB on average; each delay has its own schedule (section 5.4)",
        cells=_delay_cells,
        make=_figure_14,
        full="16 servers",
        quick="8 servers",
    ),
)
