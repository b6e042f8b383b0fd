"""All figures, in the order of the paper."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from figures.figure import Figure

_MODULES = (
    "alltoall",
    "as_released",
    "board_jobs",
    "costs",
    "dedicated",
    "heatmaps",
    "hx_packets",
    "hx_table",
    "hx_workloads",
    "layer_runs",
    "moving",
    "paths",
    "route_control",
    "routes",
    "shared",
    "testbed",
    "today",
    "tree_rings",
)

_OTHER_PAPERS = (
    "alltoall",
    "route",
    "hx",
)  # all-to-alls, "Routing for Large ML Models", HammingMesh


def all_figures() -> dict[str, Figure]:
    """By name, in the order of the paper; a name stands once."""
    found: dict[str, Figure] = {}
    for module in _MODULES:
        for figure in import_module(f"figures.charts.{module}").FIGURES:
            if figure.name in found:
                raise ValueError(f"figure {figure.name}: stands twice")
            found[figure.name] = figure
    return dict(sorted(found.items(), key=lambda item: _place(item[0])))


def _place(name: str) -> tuple[int, int, str]:
    """Tables after figures, other papers' figures last; 2 before 11a before 11b."""
    digits = "".join(c for c in name if c.isdigit())
    papers = {paper: 2 + i for i, paper in enumerate(_OTHER_PAPERS)}
    group = papers.get(name.partition("-")[0], int(not name[0].isdigit()))
    return group, int(digits or 99), name


def chosen(figures: Mapping[str, Figure], names: Iterable[str]) -> list[Figure]:
    """The named ones, in the order of the paper; none: all. "11" names 11a to 11f.

    Raises ValueError for a name that there is not.
    """
    wanted: set[str] = set()
    for name in names:
        fits = {known for known in figures if known == name or known.rstrip("abcdef") == name}
        if not fits:
            raise ValueError(f"figure: {name!r} is not one of {', '.join(figures)}")
        wanted |= fits
    return [figure for known, figure in figures.items() if not wanted or known in wanted]
