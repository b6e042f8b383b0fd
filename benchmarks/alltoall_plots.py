"""Plots of benchmarks/alltoall.py: Figures 11 to 14 of "To Reconfigure or Not to Reconfigure".

Each is drawn from cells that `--keep` has stored, as NAME.svg and NAME.png; Figure 13 is computed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from figures import plots
from torch_topoopt.reconfiguration.all_to_all.bounds import uncarried_bound_slots
from torch_topoopt.reconfiguration.all_to_all.single_cycles import (
    best_shifts,
    paper_shifts,
    shift_hops,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WORKLOADS = ("uniform", "random", "zipf")
NAMES = ("ours", "circulant", "kautz", "rings", "mixnet", "fast")
_RATIO_SERVERS = (8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096)
_SHOWN_SLOTS = (32, 512)  # servers of Figure 13b
_DELAY = "delay of the switch, s"


@dataclass(frozen=True)
class Cell:
    """(topologies, slots) of ours and of each baseline, for one network and one kind of sizes."""

    servers: int
    degree: int
    workload: str
    mean_mb: float
    strategies: Mapping[str, list[list[int]]]

    @property
    def setting(self) -> str:
        """For the title of a panel."""
        circuits = "1 circuit" if self.degree == 1 else f"{self.degree} circuits"
        return f"{self.servers} servers, {circuits}"


@dataclass(frozen=True)
class Pricing:
    """`fastest` gives (seconds, topologies) of strategies at a delay; figures over the delay show
    `delays_s`, others look among `swept_s` for the one at which reconfiguring gains most."""

    fastest: Callable[[list[list[int]], float], tuple[float, int]]
    delays_s: tuple[float, ...]
    swept_s: tuple[float, ...]


def draw(kept: Mapping[str, Any], folder: Path, pricing: Pricing) -> Iterator[str]:
    """Draws what there are cells for, and names each file. Random sizes alone make no Figure 11 or
    12: those of Figure 14 are."""
    cells = sorted(
        _cells(kept), key=lambda c: (c.degree, c.servers, c.mean_mb, WORKLOADS.index(c.workload))
    )
    folder.mkdir(parents=True, exist_ok=True)
    at = partial(_times, delays_s=pricing.swept_s, fastest=pricing.fastest)
    by_size: dict[float, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_size[cell.mean_mb].append(cell)
    for mean_mb, same in by_size.items():
        if len({cell.servers for cell in same if cell.workload != "random"}) > 1:
            title = f"All-to-all, {mean_mb:g} MB for each pair on average (Figure 11)"
            chosen = partial(_over_networks, cells=same, at=at)
            yield _saved(chosen, title, (15, 7), folder / f"networks-{mean_mb:g}MB")
    sizes: dict[int, list[Cell]] = defaultdict(list)
    for cell in cells:
        sizes[cell.servers].append(cell)
    for servers, same in sizes.items():
        if len({cell.mean_mb for cell in same if cell.workload != "random"}) > 1:
            title = f"All-to-all of {servers} servers, over sizes (Figure 12)"
            yield _saved(
                partial(_over_sizes, cells=same, at=at),
                title,
                (11, 6.5),
                folder / f"sizes-{servers}",
            )
    yield _saved(_gaps, "Slots over Theorem 1's bound (Figure 13)", (14, 4.3), folder / "bounds")
    random = [cell for cell in cells if cell.workload == "random"]
    random = [cell for cell in random if cell.mean_mb in _largest(cell, random)]
    if random:
        title = "All-to-all of random sizes, over the delay of the switch (Figure 14)"
        rows = -(-len(random) // 4)
        at = partial(_times, delays_s=pricing.delays_s, fastest=pricing.fastest)
        made = partial(_over_delays, cells=random, at=at, rows=rows)
        yield _saved(made, title, (17, 1 + 3.4 * rows), folder / "delays")


def _largest(cell: Cell, cells: list[Cell]) -> list[float]:
    """The two largest sizes of its network."""
    network = (cell.servers, cell.degree)
    sizes = sorted({other.mean_mb for other in cells if (other.servers, other.degree) == network})
    return sizes[-2:]


def _cells(kept: Mapping[str, Any]) -> Iterator[Cell]:
    for key, found in kept.items():
        servers, degree, workload, mean_mb, _ = key.split()
        strategies = {"ours": found["ours"]}
        strategies |= {name: [timed] for name, timed in found["others"].items()}
        yield Cell(int(servers), int(degree), workload, float(mean_mb), strategies)


def _saved(
    make: Callable[[Canvas], None], title: str, size: tuple[float, float], stem: Path
) -> str:
    plots.save(make, title, size, stem)
    return f"{stem}.png"


def _times(
    cell: Cell,
    *,
    delays_s: tuple[float, ...],
    fastest: Callable[[list[list[int]], float], tuple[float, int]],
) -> dict[str, list[tuple[float, float, int]]]:
    """(delay, ms, topologies) of each strategy at every delay."""
    found = {}
    for name in NAMES:
        if name in cell.strategies:
            timed = [(delay_s, *fastest(cell.strategies[name], delay_s)) for delay_s in delays_s]
            found[name] = [(delay_s, seconds * 1e3, d) for delay_s, seconds, d in timed]
    return found


def _at_most_gain(
    times: dict[str, list[tuple[float, float, int]]],
) -> tuple[float, dict[str, float]]:
    """(delay, ms of each) where reconfiguring gains most."""
    count = len(times["ours"])
    best = [min(times[name][i][1] for name in times if name != "ours") for i in range(count)]
    i = min(range(count), key=lambda i: times["ours"][i][1] / best[i])
    return times["ours"][i][0], {name: row[i][1] for name, row in times.items()}


def _over_networks(canvas: Canvas, cells: list[Cell], at: Callable[..., Any]) -> None:
    networks = sorted({(cell.degree, cell.servers) for cell in cells})
    columns = -(-len(networks) // 2)
    panels = canvas.subplots(2, columns, squeeze=False).ravel()
    for axes, network in zip(panels, networks, strict=False):
        same = [cell for cell in cells if (cell.degree, cell.servers) == network]
        gains = {cell.workload: _at_most_gain(at(cell)) for cell in same}
        groups = [f"{name}\n{delay_s:.2g} s" for name, (delay_s, _) in gains.items()]
        names = [name for name in NAMES if any(name in ms for _, ms in gains.values())]
        series = {name: [ms[name] for _, ms in gains.values()] for name in names}
        _bars(axes, groups, series)
        axes.set_title(same[0].setting, fontsize=9)
    for axes in panels[len(networks) :]:
        axes.set_axis_off()
    plots.legend_below(canvas, panels[len(networks) - 1], columns=6)


def _bars(axes: Axes, groups: list[str], series: dict[str, list[float]]) -> None:
    """Colours by name, as in the other figures; a logarithmic axis, as baselines differ by far."""
    width = 0.84 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [place + (index - (len(series) - 1) / 2) * width for place in range(len(groups))]
        colour = plots.colour(NAMES.index(name))
        drawn = axes.bar(places, values, width * 0.92, label=name, color=colour)
        axes.bar_label(drawn, fmt="%.3g", fontsize=5, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    _log_axis(axes, "time, ms")
    axes.set_ylim(bottom=0.7 * min(min(values) for values in series.values()))
    axes.grid(axis="x", visible=False)


def _log_axis(axes: Axes, label: str) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)


def _over_sizes(canvas: Canvas, cells: list[Cell], at: Callable[..., Any]) -> None:
    workloads = list(dict.fromkeys(cell.workload for cell in cells))
    degrees = sorted({cell.degree for cell in cells})
    panels = canvas.subplots(len(degrees), len(workloads), squeeze=False)
    for row, degree in zip(panels, degrees, strict=True):
        for axes, workload in zip(row, workloads, strict=True):
            same = [c for c in cells if (c.degree, c.workload) == (degree, workload)]
            curves: dict[str, list[tuple[float, float]]] = {}
            for cell in same:
                _, ms = _at_most_gain(at(cell))
                for name, value in ms.items():
                    curves.setdefault(name, []).append((cell.mean_mb, value))
            _lines(axes, curves, "mean size of a pair, MB", same[0].setting + f", {workload}")
            sizes = sorted({cell.mean_mb for cell in same})
            axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
            axes.xaxis.set_minor_formatter(NullFormatter())
    plots.legend_below(canvas, panels[-1][-1], columns=6)


def _lines(
    axes: Axes, curves: Mapping[str, list[tuple[float, float]]], x_label: str, title: str
) -> None:
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name, **plots.style(NAMES.index(name)))
    axes.set_xscale("log")
    _log_axis(axes, "time, ms")
    axes.set_xlabel(x_label)
    axes.set_title(title, fontsize=9)


def _gaps(canvas: Canvas) -> None:
    worst, *by_count = canvas.subplots(1, 1 + len(_SHOWN_SLOTS))
    curves: dict[str, list[tuple[float, float]]] = {"chosen sets": [], "the paper's order": []}
    for n in _RATIO_SERVERS:
        for name, slots in zip(curves, _shift_slots(n), strict=True):
            ratio = max(count / uncarried_bound_slots(n, 1, d) for d, count in slots)
            curves[name].append((n, ratio))
    plots.lines(worst, curves, "servers, 1 circuit", "slots over the bound, worst d", log="x")
    worst.set_xticks([8, 32, 128, 512, 2048], ["8", "32", "128", "512", "2048"])
    worst.legend()
    for axes, n in zip(by_count, _SHOWN_SLOTS, strict=True):
        chosen, paper = _shift_slots(n)
        bound = [(d, uncarried_bound_slots(n, 1, d)) for d, _ in chosen]
        for index, (name, points) in enumerate(
            (("chosen sets", chosen), ("the paper's order", paper), ("Theorem 1", bound))
        ):
            axes.plot(*zip(*points, strict=True), label=name, color=plots.colour(index))
        axes.set_xscale("log")
        _log_axis(axes, "slots")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.set_xlabel("topologies")
        axes.set_title(f"{n} servers", fontsize=9)
        axes.legend()


def _shift_slots(servers: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(topologies, slots) of chosen sets of shifts, and of the paper's order."""
    table = shift_hops(servers)
    chosen = [
        (d, int(table[list(shifts)].min(axis=0).sum(dtype=np.int64)))
        for d, shifts in best_shifts(servers).items()
    ]
    hops = np.full(servers, 4 * servers, dtype=np.int64)
    paper = []
    for d, shift in enumerate(paper_shifts(servers), 1):
        hops = np.minimum(hops, table[shift])
        paper.append((d, int(hops.sum())))
    return chosen, paper


def _over_delays(canvas: Canvas, cells: list[Cell], at: Callable[..., Any], rows: int) -> None:
    panels = canvas.subplots(rows, min(4, len(cells)), squeeze=False).ravel()
    for axes, cell in zip(panels, cells, strict=False):
        times = at(cell)
        curves = {name: [(r, ms) for r, ms, _ in row] for name, row in times.items()}
        _lines(axes, curves, _DELAY, f"{cell.setting}, {cell.mean_mb:g} MB")
        axes.set_ylim(top=6 * max(ms for name in times for _, ms, _ in times[name][:1]))
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
        for delay_s, ms, d in times["ours"]:
            axes.annotate(
                str(d),
                (delay_s, ms),
                (0, -9),
                textcoords="offset points",
                fontsize=5.5,
                ha="center",
            )
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    widest = max(range(len(cells)), key=lambda i: len(cells[i].strategies))
    plots.legend_below(canvas, panels[widest], columns=6)
