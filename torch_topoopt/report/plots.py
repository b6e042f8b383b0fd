"""The figures of a report for papers: each as SVG and as PNG, in the page's colours and units.

The same plan gives the same bytes. Operator names are the only user's text in a figure.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from torch_topoopt.plan import cables
from torch_topoopt.report.results import (
    compare_traffic,
    numbered_rings,
    path_lengths,
    ring_families,
)
from torch_topoopt.report.theme import HEAT_STEPS, LINE_COLOURS, THEME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from torch_topoopt.plan import Plan
    from torch_topoopt.report.analysis import Analysis
    from torch_topoopt.report.run_folder import Run

_WIDE = (5.2, 3.2)  # inches
_SQUARE = (4.6, 4.6)
_DPI = 200
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": THEME["grid"][0],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,
}
_BYTES = EngFormatter("B")
_SECONDS = EngFormatter("s")


def _line(number: int) -> str:
    return THEME[f"line-{number % LINE_COLOURS}"][0]


_HEAT = ListedColormap([THEME[f"heat-{i}"][0] for i in range(HEAT_STEPS)])
_MUTED = THEME["muted"][0]


def draw_all(run: Run, analysis: Analysis, folder: Path) -> list[Path]:
    """Writes all possible figures of `run` as NAME.svg and NAME.png; raises OSError."""
    plan = run.plan
    written: list[Path] = []

    def draw(name: str, inches: tuple[float, float], onto: Callable[[Axes], None]) -> None:
        written.extend(_saved(folder / name, inches, onto))

    if plan.network.links:
        draw("topology", _SQUARE, lambda axes: _topology(axes, plan))
        draw("path-length", _WIDE, lambda axes: _path_length(axes, plan))
        _draw_traffic(run, draw)
    if plan.search:
        draw("search", _WIDE, lambda axes: _search(axes, plan))
    if analysis.iteration is not None:
        draw("timeline", (6.4, 3.0), lambda axes: _timeline(axes, analysis))
    if analysis.costs:
        draw("cost", _WIDE, lambda axes: _costs(axes, analysis))
    return written


def _saved(
    path: Path, inches: tuple[float, float], onto: Callable[[Axes], None]
) -> tuple[Path, Path]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        matplotlib.rcParams["svg.hashsalt"] = path.name
        figure = Figure(figsize=inches, layout="constrained")
        FigureCanvasAgg(figure)
        onto(figure.add_subplot())
        as_svg, as_png = path.with_suffix(".svg"), path.with_suffix(".png")
        figure.savefig(as_svg, metadata={"Date": None})
        figure.savefig(as_png, dpi=_DPI, metadata={"Software": None})
    return as_svg, as_png


# ---- network -------------------------------------------------------------------------------------


def _topology(axes: Axes, plan: Plan) -> None:
    """Servers on a circle; cables of short strides bend outwards, as on the page."""
    servers = plan.cluster.servers
    rings = numbered_rings(plan.network)
    families = ring_families(rings)
    family_of: dict[frozenset[int], int] = {}
    for ring, family in zip(rings, families, strict=True):
        for hop in ring.hops:
            family_of.setdefault(frozenset(hop), family)
    angles = math.pi / 2 - 2 * math.pi * np.arange(servers) / servers
    places = np.column_stack([np.cos(angles), np.sin(angles)])
    around = {(link.target - link.source) % servers for link in plan.network.links}
    spans = sorted({min(stride, servers - stride) for stride in around})
    curves: dict[int, list[Any]] = {}
    for together in cables(plan.cluster, plan.network):
        link = plan.network.links[together[0]]
        curve = _cable(places, link.source, link.target, spans)
        curves.setdefault(family_of.get(frozenset((link.source, link.target)), -1), []).append(
            curve
        )
    wide = 1.6 if servers <= 32 else 0.9 if servers <= 160 else 0.5
    names = _family_names(rings, families)
    for family, arcs in sorted(curves.items()):
        codes = [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3] * len(arcs)
        path = Curve(np.concatenate(arcs), codes)
        colour = _MUTED if family < 0 else _line(family)
        label = "no ring" if family < 0 else names[family]
        axes.add_patch(PathPatch(path, fill=False, edgecolor=colour, linewidth=wide, label=label))
    axes.scatter(
        places[:, 0], places[:, 1], s=max(3.0, 900 / servers), color=THEME["ink"][0], zorder=3
    )
    every = 1 if servers <= 32 else 4 if servers <= 160 else 16
    for server in range(0, servers, every):
        x, y = places[server] * (1.14 if servers > 24 else 1.1)
        axes.text(x, y, str(server), ha="center", va="center", size=7, color=_MUTED)
    axes.set(xlim=(-1.22, 1.22), ylim=(-1.22, 1.22), aspect="equal")
    axes.axis("off")
    if 1 <= len(curves) <= 8:
        handles = [
            Line2D([], [], color=patch.get_edgecolor(), label=str(patch.get_label()))
            for patch in axes.patches
        ]
        axes.legend(handles=handles, loc="lower right", fontsize=7, title="rings", title_fontsize=7)


def _cable(
    places: np.ndarray[Any, Any], a: int, b: int, spans: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Like `circle` in templates/topology.js; `spans` are all strides, ascending."""
    servers = len(places)
    span = min((a - b) % servers, (b - a) % servers)
    straight = math.cos(math.pi * span / servers)
    inside = [s for s in spans if servers < 24 or s > max(1, servers / 40)]
    if span not in inside:
        radius = 1 / straight + 0.1
    elif servers < 24 or len(inside) > 6:
        radius = straight
    else:
        depth = min(straight, 0.72 - 0.6 * inside.index(span) / len(inside))
        radius = 2 * depth - straight
    first = a if (b - a) % servers == span else b
    angle = math.pi / 2 - 2 * math.pi * (first + span / 2) / servers
    return np.array([places[a], (radius * math.cos(angle), radius * math.sin(angle)), places[b]])


def _family_names(rings: Sequence[Any], families: list[int]) -> list[str]:
    names: dict[int, list[str]] = {}
    for ring, family in zip(rings, families, strict=True):
        text = ring.stride_text.partition(" ")[0]
        names.setdefault(family, []).append(text if ring.stride is not None else f"{ring.number}")
    return [", ".join(names[family][:2]) for family in sorted(names)]


def _path_length(axes: Axes, plan: Plan) -> None:
    """TopoOpt paper, Figure 14."""
    lengths = path_lengths(plan.network)
    hops = [lengths[0][0], *(entry[0] for entry in lengths)]
    shares = [0.0, *itertools.accumulate(entry[1] for entry in lengths)]
    axes.step(hops, shares, where="post", color=_line(0))
    axes.set(xlabel="path length (hops)", ylabel="share of pairs", xlim=(0, None), ylim=(0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


# ---- traffic -------------------------------------------------------------------------------------


def _draw_traffic(run: Run, draw: Callable[..., None]) -> None:
    traffic = compare_traffic(run)
    known: list[tuple[str, tuple[float | None, ...]]] = []
    if traffic.basis != "measured" and run.plan.predicts_bytes:
        known.append(("predicted", traffic.predicted))
    if traffic.basis != "predicted":
        known.append(("measured", traffic.measured))
    if not known:
        return
    shares = traffic.basis == "share"
    top = max((v for _, values in known for v in values if v is not None), default=0.0)
    for name, values in known:
        draw(
            f"heatmap-{name}", _SQUARE,
            lambda axes, values=values: _heatmap(axes, run.plan, values, top, shares=shares),
        )  # fmt: skip
    draw("link-load", _WIDE, lambda axes: _loads(axes, known, shares=shares))


def _heatmap(
    axes: Axes, plan: Plan, values: tuple[float | None, ...], top: float, *, shares: bool
) -> None:
    """TopoOpt paper, Figures 8 and 9."""
    servers = plan.cluster.servers
    cells = np.full((servers, servers), np.nan)
    for link, value in zip(plan.network.links, values, strict=True):
        if value is not None:
            cells[link.source, link.target] = np.nan_to_num(cells[link.source, link.target]) + value
    drawn = axes.imshow(cells, cmap=_HEAT, vmin=0, vmax=max(top, np.nanmax(cells, initial=0.0)))
    axes.set(xlabel="to server", ylabel="from server")
    axes.grid(visible=False)
    bar = axes.figure.colorbar(drawn, ax=axes, shrink=0.8)
    bar.formatter = PercentFormatter(1.0) if shares else _BYTES
    bar.update_ticks()


def _loads(axes: Axes, known: list[tuple[str, tuple[float | None, ...]]], *, shares: bool) -> None:
    """TopoOpt paper, Figure 15."""
    for i, (name, values) in enumerate(known):
        sizes = sorted(value for value in values if value is not None)
        parts = np.arange(len(sizes) + 1) / max(1, len(sizes))
        axes.step([sizes[0], *sizes], parts, where="post", color=_line(i), label=name)
    axes.set(xlabel="share of all bytes" if shares else "bytes on a link", ylabel="share of links")
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0) if shares else _BYTES)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if len(known) > 1:
        axes.legend()


# ---- time and cost -------------------------------------------------------------------------------


def _search(axes: Axes, plan: Plan) -> None:
    evaluations = [sample.evaluations for sample in plan.search]
    current = [sample.current_s for sample in plan.search]
    best = [sample.best_s for sample in plan.search]
    axes.plot(evaluations, current, color=_line(1), linewidth=0.8, label="current state")
    axes.step(evaluations, best, where="post", color=_line(0), label="best so far")
    axes.set(xlabel="evaluations", ylabel="predicted iteration")
    axes.yaxis.set_major_formatter(_SECONDS)
    axes.legend()


def _timeline(axes: Axes, analysis: Analysis) -> None:
    iteration = analysis.iteration
    assert iteration is not None
    names = ["compute", *(f"{c.kind} of {c.label}" for c in iteration.cargoes)]
    edges = np.linspace(0.0, iteration.iteration_s, len(iteration.computing) + 1)
    axes.stairs(0.4 - 0.8 * iteration.computing, edges, baseline=0.4, fill=True, color=_MUTED)
    for row, cargo in enumerate(iteration.cargoes, 1):
        axes.barh(row, cargo.end_s - cargo.start_s, left=cargo.start_s, height=0.6,
                  color=_line(row - 1))  # fmt: skip
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="time in the iteration", ylim=(len(names) - 0.4, -0.6))
    axes.set_xlim(0, iteration.iteration_s)
    axes.xaxis.set_major_formatter(_SECONDS)
    axes.grid(visible=False, axis="y")


def _costs(axes: Axes, analysis: Analysis) -> None:
    """Iteration against cost, each architecture a point (TopoOpt paper, Figures 10 and 11)."""
    for i, row in enumerate(analysis.costs):
        if row.cost is not None:
            axes.scatter(row.cost, row.iteration_s, color=_line(i), label=row.name, zorder=3)
    axes.set(xlabel="cost ($)", ylabel="predicted iteration", xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.yaxis.set_major_formatter(_SECONDS)
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_minor_formatter(EngFormatter("s"))
    axes.legend(fontsize=7)
