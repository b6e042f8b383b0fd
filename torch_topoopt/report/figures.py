"""The traffic heatmaps and the curves of a report, as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Curve
from matplotlib.ticker import MaxNLocator

from torch_topoopt.report.svg import HEAT_DARK_STEP, HEAT_STEPS, ink, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torch_topoopt.plan import SearchSample
    from torch_topoopt.report.results import Series

# ---- traffic -------------------------------------------------------------------------------------


def cell_text(value: float) -> str:
    """A value below 1000 in at most four characters."""
    if value == 0:
        return "0"
    if value < 0.005:
        return "<.01"
    return (
        f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


def _draw_heatmap(
    axes: Axes, title: str, cells: dict[tuple[int, int], float], servers: int, top: float
) -> None:
    axes.set_title(title, pad=8, loc="left")
    axes.set(xlim=(-0.5, servers - 0.5), ylim=(servers - 0.5, -0.5), aspect="equal")
    axes.set(xlabel="to server")
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(
            MaxNLocator(
                min(servers, 16) if servers <= 32 else 8, integer=True, steps=[1, 2, 4, 8, 10]
            )
        )
        axis.set_tick_params(length=0 if servers <= 16 else 3)
    if servers <= 32:
        for edge in range(1, servers):
            axes.axhline(edge - 0.5, color=ink("grid"), linewidth=0.4)
            axes.axvline(edge - 0.5, color=ink("grid"), linewidth=0.4)
    by_step: dict[int, list[tuple[int, int]]] = {}
    for (source, target), value in sorted(cells.items()):
        step = min(HEAT_STEPS - 1, int(value / top * HEAT_STEPS)) if top else 0
        by_step.setdefault(step, []).append((source, target))
        if servers <= 16:
            text = axes.text(target, source, cell_text(value), ha="center", va="center_baseline")
            text.set_fontsize(8.5 if servers <= 8 else 6.5 if servers <= 12 else 5.5)
            text.set_color(ink("heat-text-high" if step >= HEAT_DARK_STEP else "heat-text-low"))
    for step, places in sorted(by_step.items()):
        axes.add_patch(PathPatch(_squares(places), facecolor=ink(f"heat-{step}"), linewidth=0))


def _squares(places: list[tuple[int, int]]) -> Curve:
    corner = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])
    points = np.concatenate([corner + np.array([target, source]) for source, target in places])
    codes = [Curve.MOVETO, Curve.LINETO, Curve.LINETO, Curve.LINETO, Curve.CLOSEPOLY]
    return Curve(points, codes * len(places))


def _draw_scale(axes: Axes, top: float, unit: str) -> None:
    for step in range(HEAT_STEPS):
        low = step * top / HEAT_STEPS
        # The edge closes the hairline that antialiasing leaves between neighbours.
        axes.add_patch(
            Rectangle((0, low), 1, top / HEAT_STEPS, color=ink(f"heat-{step}"), linewidth=0.4)
        )
    axes.set(xlim=(0, 1), ylim=(0, top), xticks=[], ylabel=unit)
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")


def heatmaps(
    servers: int,
    titles: Sequence[str],
    maps: Sequence[dict[tuple[int, int], float]],
    unit: str,
) -> str:
    """Server by server heatmaps side by side on one scale from 0 to their largest value.

    `maps[i]` gives the value of every linked (from, to) pair, below 1000, in `unit`; pairs without
    a link stay empty. Values are printed in the cells up to 16 servers.
    """
    top = max((value for cells in maps for value in cells.values()), default=0.0) or 1.0

    def draw(figure: Figure) -> None:
        left, side, bottom = 0.055, 0.40, 0.11
        for i, (title, cells) in enumerate(zip(titles, maps, strict=True)):
            axes = figure.add_axes((left + i * 0.45, bottom, side, 0.8))
            _draw_heatmap(axes, title, cells, servers, top)
            if i == 0:
                axes.set_ylabel("from server")
        right = left + (len(maps) - 1) * 0.45 + side
        _draw_scale(figure.add_axes((right + 0.012, bottom, 0.014, 0.8)), top, unit)

    label = f"Heatmaps of bytes from server to server, in {unit}: {', '.join(titles)}"
    return render("heatmaps", (10.0, 5.0), label, draw)


# ---- curves --------------------------------------------------------------------------------------


def search_curve(samples: Sequence[SearchSample]) -> str:
    """Current and best predicted iteration against cost evaluations, of at least one sample."""
    milli = samples[-1].best_s < 1
    scale = 1e3 if milli else 1.0
    evaluations = [sample.evaluations for sample in samples]
    current = [sample.current_s * scale for sample in samples]
    best = [sample.best_s * scale for sample in samples]

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.09, 0.17, 0.89, 0.78))
        axes.plot(evaluations, current, color=ink("line-1"), linewidth=0.8)
        axes.plot(evaluations, best, color=ink("line-0"), linewidth=1.8, drawstyle="steps-post")
        unit = "ms" if milli else "s"
        axes.set(xlabel="cost evaluations", ylabel=f"predicted iteration ({unit})")
        axes.grid(axis="y")
        axes.set_axisbelow(True)

    label = (
        f"Search curve: best predicted iteration {samples[0].best_s:.4g} s at the start, "
        f"{samples[-1].best_s:.4g} s after {samples[-1].evaluations} evaluations"
    )
    return render("search", (8.8, 3.0), label, draw)


def _draw_series(axes: Axes, series: Sequence[Series], first: int) -> None:
    for i, line in enumerate(series):
        x, y = zip(*line.points, strict=True) if line.points else ((), ())
        (drawn,) = axes.plot(x, y, color=ink(f"line-{first + i}"), linewidth=1.5)
        if len(x) <= 40:
            drawn.set(marker="o", markersize=3)
    axes.grid()
    axes.set_axisbelow(True)


def training_curves(
    axis: str, accuracies: Sequence[Series], losses: Sequence[Series], goal: float | None
) -> str:
    """Accuracies in % and losses, each in its own panel over the same axis.

    Line colours count through both panels. `goal`, in %, is drawn as a dashed line. At least one of
    the two must not be empty.
    """
    panels = [(name, s) for name, s in (("accuracy (%)", accuracies), ("loss", losses)) if s]

    def draw(figure: Figure) -> None:
        first = 0
        for i, (name, series) in enumerate(panels):
            axes = figure.add_axes((0.07 + i * 0.5, 0.17, 0.42 if len(panels) > 1 else 0.91, 0.78))
            _draw_series(axes, series, first)
            if series is accuracies and goal is not None:
                axes.axhline(goal, color=ink("muted"), linewidth=0.9, linestyle=(0, (4, 3)))
            axes.set(xlabel=axis, ylabel=name)
            first += len(series)

    names = " and ".join(name for name, _ in panels)
    return render("training", (8.8, 3.0), f"Training curves: {names}", draw)
