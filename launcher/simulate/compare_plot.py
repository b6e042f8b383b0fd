"""The picture of `topoopt compare`: four bar charts over the architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from torch_topoopt.comparison.compare import Comparison

_WIDE = 20.0  # ratio of the largest to the least value above which an axis is logarithmic
_BAR, _OURS = "#9db4cf", "#d1495b"  # others, and TopoOpt's own networks


class BarChart(NamedTuple):
    """One chart. Unknown values are None and labelled as such."""

    title: str
    values: Sequence[float | None]
    missing: str = "-"

    @property
    def is_logarithmic(self) -> bool:
        """Whether a linear axis would make most bars too short to tell apart."""
        known = [value for value in self.values if value]
        return bool(known) and max(known) > _WIDE * min(known)


def charts(comparison: Comparison) -> list[BarChart]:
    """The charts, with a value for each row of the comparison."""
    rows = comparison.rows
    return [
        BarChart("iteration (ms)", [row.iteration_s * 1e3 for row in rows]),
        BarChart(
            "cost (thousand dollars)",
            [None if row.cost is None else row.cost / 1e3 for row in rows],
            "no price",
        ),
        BarChart(
            "iterations/s per million dollars",
            [row.iterations_per_s_per_mdollar for row in rows],
            "no price",
        ),
        BarChart("bandwidth tax", [row.bandwidth_tax for row in rows]),
    ]


def draw(comparison: Comparison, path: str) -> None:
    """Writes the picture; raises InputError if that is impossible."""
    from matplotlib.figure import Figure

    names = [row.architecture for row in comparison.rows]
    figure = Figure(figsize=(14, 1.2 + 0.3 * len(names)), layout="constrained")
    places = figure.subplots(1, 4, sharey=True)
    for axes, chart in zip(places, charts(comparison), strict=True):
        _draw_chart(axes, names, chart)
    places[0].invert_yaxis()  # the first architecture on top
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InputError(f"plot: {path}: cannot be written: {error.strerror}") from None


def _draw_chart(axes: Axes, names: list[str], chart: BarChart) -> None:
    known = [value for value in chart.values if value]
    least = min(known, default=1.0) / 2 if chart.is_logarithmic else 0.0
    colours = [_OURS if name.startswith("topoopt") else _BAR for name in names]
    axes.barh(
        names, [(value or least) - least for value in chart.values], left=least, color=colours
    )
    if chart.is_logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(least, max(known) * (max(known) / least) ** 0.25)  # room for the figures
    else:
        axes.set_xlim(0, max(known, default=1.0) * 1.25)
    for place, value in enumerate(chart.values):
        text = (
            chart.missing if value is None else f"{value:,.0f}" if value >= 1e4 else f"{value:.3g}"
        )
        at = (value or least, place)
        axes.annotate(text, at, (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_title(f"{chart.title}{', logarithmic' if chart.is_logarithmic else ''}", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
