"""Plots that stand alone: a title, axes with units, a legend, the same colours everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

# After Okabe and Ito: colours that stay apart for colour-blind readers; each with a marker.
_STYLES = (
    ("#0072b2", "o"),
    ("#d55e00", "s"),
    ("#009e73", "^"),
    ("#cc79a7", "D"),
    ("#8a6d00", "v"),
    ("#56b4e9", "P"),
    ("#5f6b73", "X"),
    ("#7a1f1f", "*"),
    ("#4b3fa8", "<"),
    ("#000000", ">"),
)
_NARROW = 1.5  # a range below this has no use for a logarithmic axis
_FEW_TICKS = 4.0  # a range below this holds one power of ten at most, so all ticks have labels
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "figures",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d3d9e0",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}


def save(draw: Callable[[Canvas], None], title: str, size: tuple[float, float], stem: Path) -> None:
    """Draws, and writes STEM.svg and STEM.png; the same rows give the same bytes."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        canvas = Canvas(figsize=size, layout="constrained")
        FigureCanvasAgg(canvas)
        canvas.suptitle(title, fontsize=10)
        draw(canvas)
        canvas.savefig(f"{stem}.svg", metadata={"Date": None})
        canvas.savefig(f"{stem}.png", dpi=130, metadata={"Software": None})


def style(index: int) -> dict[str, Any]:
    """Colour and marker number `index`."""
    colour, marker = _STYLES[index % len(_STYLES)]
    return {"color": colour, "marker": marker}


def colour(index: int) -> str:
    return _STYLES[index % len(_STYLES)][0]


# parameters: what is drawn, and the words on the axes
def lines(
    axes: Axes,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    *,
    log: str = "",
) -> None:
    """One line per entry, with markers; `log` names the axes with a logarithmic scale."""
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(*zip(*points, strict=True), label=name, **style(index))
    if "x" in log:  # ticks at the points alone: they are few, and between decades
        axes.set_xscale("log")
        ticks = sorted({x for points in curves.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    values = [y for points in curves.values() for _, y in points]
    if "y" in log and max(values) > _NARROW * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        if max(values) < _FEW_TICKS * min(values):
            axes.yaxis.set_minor_locator(LogLocator(subs=(1.5, 2, 3, 4, 5, 6, 7, 8, 9)))
            axes.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        else:
            axes.yaxis.set_minor_formatter(FuncFormatter(_two_or_five))
    else:
        axes.set_ylim(0, 1.08 * max(values))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def _two_or_five(value: float, place: int | None = None) -> str:
    """The label of a tick between powers of ten."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def steps(axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]], x_label: str) -> None:
    """Cumulative distributions: points (value, fraction at most that), ascending."""
    for index, (name, points) in enumerate(curves.items()):
        xs, ys = zip((points[0][0], 0.0), *points, strict=True)
        axes.step(xs, ys, where="post", label=name, color=colour(index))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(x_label)
    axes.set_ylabel("fraction at most that (CDF)")


def bars(
    axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[float]], y_label: str
) -> None:
    """Bars side by side, with their values above them."""
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [place + (index - (len(series) - 1) / 2) * width for place in range(len(groups))]
        drawn = axes.bar(places, values, width * 0.92, label=name, color=colour(index))
        axes.bar_label(drawn, fmt=_three_digits, fontsize=6, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(y_label)
    axes.grid(axis="x", visible=False)


def _three_digits(value: float) -> str:
    """Or all of a whole part that has more."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def legend_below(canvas: Canvas, axes: Axes, columns: int = 3) -> None:
    """One legend under all panels, of the names in `axes`."""
    canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
