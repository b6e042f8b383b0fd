"""Figures 5 and 7 to 10 of "HammingMesh": jobs on boards, their traffic in the trees, failures."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from figures import plots
from figures.cell import Cell
from figures.cells.board_jobs import BOUNDS, VARIANTS, allocations
from figures.figure import Figure, Made, Quantity
from torch_topoopt.shared_networks.allocation.drawing import draw_boards
from torch_topoopt.shared_networks.allocation.tree_traffic import DEFAULT_BOARDS_PER_LEAF

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_CELLS = "figures.cells.board_jobs"
_LAW = "powers"
# Columns and rows of boards: the small and the large clusters of Table II.
_MESHES = {
    "Hx2Mesh, 16x16 boards": (16, 16),
    "Hx4Mesh, 8x8 boards": (8, 8),
    "Hx2Mesh, 64x64 boards": (64, 64),
    "Hx4Mesh, 32x32 boards": (32, 32),
}
_LARGE = dict(list(_MESHES.items())[2:])
_BLUE = [[1, 1], [1, 4], [2, 1], [2, 4], [3, 1], [3, 4], [4, 1], [4, 4]]
_YELLOW = [[1, 1], [1, 2], [1, 4], [2, 1], [2, 2], [2, 4], [4, 1], [4, 2], [4, 4]]
_DRAWN = (*VARIANTS, *BOUNDS)
_LOCAL = ("transpose + aspect + sort", "transpose + aspect + sort + locality")
_FAILING = ("transpose + aspect", "transpose + aspect + sort", "ruin-recreate, transpose + aspect")
_FAILING_BOUND = "bound, transpose + aspect"  # where all subsets of rows can be looked at
_FAILED = (0, 10, 20, 30, 40)
_STATED = 0.7  # utilisation that the text says is exceeded nearly always


def _name_of(parameters: Mapping[str, Any]) -> str:
    size = parameters["columns"], parameters["rows"]
    return next(name for name, own in _MESHES.items() if own == size)


def _picture(quick: bool) -> list[Cell]:
    return [Cell.of(f"{_CELLS}:figure_5")]


def _make_picture(results: Results, quick: bool) -> Made:
    [(_, found)] = results
    every = [
        next(allocations("uniform", 16, 16, 1, variant, 12, 5))
        for variant in ("greedy", "ruin-recreate, transpose + aspect")
    ]

    def draw(canvas: Canvas) -> None:
        for axes, name, own in zip(
            canvas.subplots(1, 2), ("greedy", "ruin-recreate"), every, strict=True
        ):
            draw_boards(axes, own)
            axes.set_title(f"{name}: utilisation {own.utilisation:.1%}", fontsize=9)

    quantities = [
        Quantity(f"boards of the {name} sub-mesh of Figure 5 that are the paper's",
                 float(sum(board in paper for board in found[name])), float(len(paper)))
        for name, paper in (("blue", _BLUE), ("yellow", _YELLOW))
    ]  # fmt: skip
    csv = [
        {"submesh": name, "column": column, "row": row}
        for name, own in found.items()
        for column, row in own
    ]
    return Made(csv, draw, quantities, (11.0, 5.8))


def _sizes(quick: bool) -> list[Cell]:
    return [
        Cell.of(f"{_CELLS}:boards_by_size", law=law, columns=64, rows=64, seed=0,
                mixes=50 if quick else 1000)
        for law in ("powers", "uniform")
    ]  # fmt: skip


def _make_sizes(results: Results, quick: bool) -> Made:
    curves: dict[str, list[tuple[float, float]]] = {}
    quantities, csv = [], []
    for p, row in results:
        for kind in ("distribution", "mixes"):
            sums = accumulate(part for _, part in row[kind])
            points = [(float(n), s) for (n, _), s in zip(row[kind], sums, strict=True)]
            curves[f"{p['law']}, {kind}"] = points
            csv += [{"law": p["law"], "of": kind, "boards": n, "cdf": s} for n, s in points]
            quantities += [
                Quantity(f"part of all boards in jobs of at most {most} boards", part,
                         model=p["law"], mode=kind)
                for most in (1, 4, 16, 64, 256)
                for part in [max(s for n, s in points if n <= most)]
            ]  # fmt: skip
        quantities.append(
            Quantity("boards of a job, mean", row["jobs_mean_boards"], model=p["law"])
        )

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        plots.steps(axes, curves, "boards of a job")
        axes.set_xscale("log", base=2)
        axes.set_ylabel("part of the boards, jobs of at most that")
        axes.legend()

    return Made(csv, draw, quantities)


def _used(quick: bool) -> list[Cell]:
    """The allocations of `_crossing` are not made again."""
    made = [] if quick else _crossing(quick)
    kept = {(c.parameters["law"], _name_of(c.parameters), c.parameters["variant"]) for c in made}
    return made + [
        Cell.of(f"{_CELLS}:utilisations", limit_s=3000.0, law=law, columns=columns, rows=rows,
                mixes=20 if quick else 1000, variant=variant, failed=0, seed=0)
        for law in ("powers", "uniform")
        for mesh, (columns, rows) in _MESHES.items()
        for variant in _DRAWN
        if (law, mesh, variant) not in kept
    ]  # fmt: skip


def _make_used(results: Results, quick: bool) -> Made:
    found = {
        (p["law"], _name_of(p), p["variant"]): row if isinstance(row, list) else row["utilisation"]
        for p, row in results
    }
    ordered = ((law, m, v) for law in ("powers", "uniform") for m in _MESHES for v in _DRAWN)
    values = {key: found[key] for key in ordered}

    def draw(canvas: Canvas) -> None:
        for axes, mesh in zip(canvas.subplots(2, 2).flat, _MESHES, strict=True):
            _violins(axes, {v: values["powers", mesh, v] for v in _DRAWN})
            axes.set_title(mesh, fontsize=9)

    stated = {"greedy": 0.9, "transpose + sort": 0.98}
    quantities = []
    for (law, mesh, variant), row in values.items():
        paper = stated.get(variant) if law == "powers" else None
        first = 0.95 if law == "powers" and variant == "transpose + sort" else None
        model = mesh if law == "powers" else f"{mesh}, uniform sizes"
        for what, ours, theirs in (
            ("mean", float(np.mean(row)), paper),
            ("median", float(np.median(row)), paper),
            ("1st percentile", float(np.percentile(row, 1)), first),
        ):
            if law == "powers" or what == "mean":
                quantities.append(
                    Quantity(
                        *(f"utilisation, {what}", ours, theirs, model, variant),
                        "job sizes are our own distribution, in which two jobs may share a board "
                        "in all shapes: no allocation of transpose + aspect has a higher 1st "
                        "percentile. The paper's sizes are those of a log",
                    )
                )
    csv = [
        {"law": law, "mesh": mesh, "variant": variant, "mix": i, "utilisation": value}
        for (law, mesh, variant), row in values.items()
        for i, value in enumerate(row)
    ]
    return Made(csv, draw, quantities, (14.0, 9.0))


def _crossing(quick: bool) -> list[Cell]:
    return [
        Cell.of(f"{_CELLS}:tree_fractions", limit_s=3000.0, law=_LAW, columns=columns, rows=rows,
                mixes=10 if quick else 1000, variant=variant, per_leaf=DEFAULT_BOARDS_PER_LEAF,
                seed=0)
        for columns, rows in _LARGE.values()
        for variant in ("greedy", *_LOCAL, "ruin-recreate, transpose + aspect + locality")
    ]  # fmt: skip


def _make_crossing(results: Results, quick: bool) -> Made:
    values = {(_name_of(p), p["variant"]): row for p, row in results}
    kinds = ("all-to-all", "AllReduce")

    def draw(canvas: Canvas) -> None:
        for axes, (mesh, kind) in zip(
            canvas.subplots(2, 2).flat, [(m, k) for m in _LARGE for k in kinds], strict=True
        ):
            _violins(axes, {v: row[kind] for (m, v), row in values.items() if m == mesh})
            axes.set_ylim(0, 1)
            axes.set_ylabel("part that crosses an upper level")
            axes.set_title(f"{mesh}: {kind}", fontsize=9)

    quantities = [
        Quantity(f"{kind}: part of tree traffic on upper levels, {what}", number(row[kind]),
                 model=mesh, mode=variant)
        for (mesh, variant), row in values.items()
        for kind in kinds
        for what, number in (("median", _median), ("maximum", max))
    ]  # fmt: skip
    csv = [
        {"mesh": mesh, "variant": variant, "mix": i, **{kind: row[kind][i] for kind in row}}
        for (mesh, variant), row in values.items()
        for i in range(len(row["utilisation"]))
    ]
    return Made(csv, draw, quantities, (11.0, 9.0))


def _failing(quick: bool) -> list[Cell]:
    return [
        Cell.of(f"{_CELLS}:utilisations", limit_s=3000.0, law=_LAW, columns=columns, rows=rows,
                mixes=10 if quick else 1000, variant=variant, failed=failed, seed=0)
        for columns, rows in _MESHES.values()
        for variant in _FAILING
        for failed in _FAILED
    ] + [
        Cell.of("figures.cells.board_failures:bounds_with_failures", law=_LAW, columns=columns,
                rows=rows, mixes=10 if quick else 1000, variant=_FAILING_BOUND, failed=failed,
                seed=0)
        for columns, rows in list(_MESHES.values())[:2]
        for failed in _FAILED
    ]  # fmt: skip


def _make_failing(results: Results, quick: bool) -> Made:
    values = {(_name_of(p), p["variant"], p["failed"]): row for p, row in results}

    def draw(canvas: Canvas) -> None:
        for axes, mesh in zip(canvas.subplots(2, 2).flat, _MESHES, strict=True):
            for index, variant in enumerate(_FAILING):
                every = [values[mesh, variant, failed] for failed in _FAILED]
                places = [3 * index / 4 + 4 * i for i in range(len(_FAILED))]
                _violin_bodies(axes, places, every, index, variant)
            axes.set_xticks([4 * i + 0.75 for i in range(len(_FAILED))], [str(f) for f in _FAILED])
            axes.set_xlabel("failed boards")
            axes.set_ylabel("working boards with a job")
            axes.set_ylim(0, 1.02)
            axes.axhline(_STATED, color="0.4", linewidth=0.8, linestyle=":")
            axes.set_title(mesh, fontsize=9)
        plots.legend_below(canvas, axes)

    quantities = [
        Quantity(f"{what}, {failed} failed", value, model=mesh, mode=variant)
        for (mesh, variant, failed), row in values.items()
        for what, value in (
            ("utilisation of working boards, median", _median(row)),
            ("utilisation of working boards, mean", float(np.mean(row))),
            (f"part of mixes above {_STATED:.0%} of working boards", _above(row, _STATED)),
        )
    ]  # fmt: skip
    csv = [
        {"mesh": mesh, "variant": variant, "failed": failed, "mix": i, "utilisation": value}
        for (mesh, variant, failed), row in values.items()
        for i, value in enumerate(row)
    ]
    return Made(csv, draw, quantities, (11.0, 9.0))


def _median(row: Sequence[float]) -> float:
    return float(np.median(row))


def _above(row: Sequence[float], least: float) -> float:
    return float(np.mean(np.array(row) > least))


def _violins(axes: Axes, every: Mapping[str, Sequence[float]]) -> None:
    """One violin for each entry, with its median as a point and its name below."""
    for index, (name, row) in enumerate(every.items()):
        _violin_bodies(axes, [float(index)], [row], index, name)
    axes.set_xticks(range(len(every)), [_broken(name) for name in every], fontsize=6)
    axes.set_ylabel("utilisation")


def _broken(name: str) -> str:
    return name.replace(" + ", "\n+ ").replace(", ", ",\n")


def _violin_bodies(
    axes: Axes, places: list[float], every: list[Sequence[float]], index: int, name: str
) -> None:
    colour = plots.colour(index)
    spread = [(place, row) for place, row in zip(places, every, strict=True) if len(set(row)) > 1]
    if spread:
        made: Any = axes.violinplot(
            [list(row) for _, row in spread], [place for place, _ in spread], widths=0.7,
            showextrema=False,
        )  # fmt: skip
        for body in made["bodies"]:
            body.set_facecolor(colour)
            body.set_alpha(0.55)
    medians = [_median(row) for row in every]
    axes.plot(places, medians, "o", color=colour, markeredgecolor="white", label=name)


FIGURES = (
    Figure(
        *("hx-5", "jobs and boards, some failed"),
        about="Figure 5 of HammingMesh: sub-meshes beside failed boards, and a mix of jobs",
        cells=_picture,
        make=_make_picture,
    ),
    Figure(
        *("hx-7", "boards by size of the job"),
        about="Figure 7 of HammingMesh, of two distributions of our own",
        cells=_sizes,
        make=_make_sizes,
        full="1000 mixes of 4096 boards",
        quick="50 mixes",
    ),
    Figure(
        *("hx-8", "utilisation"),
        about="Figure 8 of HammingMesh: mixes of jobs that fill the boards, sets of heuristics",
        cells=_used,
        make=_make_used,
        full="1000 mixes",
        quick="20 mixes",
    ),
    Figure(
        *("hx-9", "traffic on the upper levels of the trees"),
        about="Figure 9 of HammingMesh: all-to-all and AllReduce of all jobs of a mix",
        cells=_crossing,
        make=_make_crossing,
        full="1000 mixes",
        quick="10 mixes",
    ),
    Figure(
        *("hx-10", "utilisation with failed boards"),
        about="Figure 10 of HammingMesh: mixes that would fill all boards, 0 to 40 of them failed",
        cells=_failing,
        make=_make_failing,
        full="1000 mixes",
        quick="10 mixes",
    ),
)
