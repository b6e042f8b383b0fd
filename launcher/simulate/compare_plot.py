"""The picture of `topoopt compare`: four bar charts over the architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    from torch_topoopt.comparison.compare import Comparison


def draw(comparison: Comparison, path: str) -> None:
    """Writes the picture; raises InputError if that is impossible."""
    from matplotlib.figure import Figure

    rows = comparison.rows
    names = [row.architecture for row in rows][::-1]
    panels: list[tuple[str, list[float | None]]] = [
        ("iteration (ms)", [row.iteration_s * 1e3 for row in rows]),
        ("cost (thousand dollars)", [(row.cost or 0.0) / 1e3 for row in rows]),
        ("iterations/s per million dollars", [row.iterations_per_s_per_mdollar for row in rows]),
        ("bandwidth tax", [row.bandwidth_tax for row in rows]),
    ]
    figure = Figure(figsize=(12, 1.5 + 0.5 * len(rows)), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, 4, sharey=True), panels, strict=True):
        axes.barh(names, [value or 0.0 for value in values][::-1], color="#4477aa")
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8)
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"plot: {path}: cannot be written: {error.strerror}") from None
