"""Figures 1, 7 to 9, 22 and 23: DLRM's traffic on 16 servers, rings, trees, TopoOpt's network."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from figures import plots
from figures.cell import Cell
from figures.cells.traffic import relabelled
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_STRIDES = (1, 3, 7)  # Figures 7 and 8 show three; TopologyFinder chooses its own in Figure 9
_TREES = ((2, 1), (6, 1), (3, 8))  # Figure 23: steps of inner servers and leaves, the first leaf
_NO_ROOTS = 14.0  # Appendix A: all servers but the two roots
_ALL_REDUCE, _HYBRID, _MP = 44e9, 4e9, 32 * 2**20  # section 2.1


def _rings(strides: list[int], *, hybrid: bool) -> Cell:
    return Cell.of("figures.cells.traffic:on_rings", strides=strides, hybrid=hybrid)


def _heatmap(canvas: Canvas, axes: Axes, matrix: Any, title: str, most: float) -> None:
    shown = np.ma.masked_equal(np.array(matrix) / 1e9, 0)
    image = axes.imshow(shown, cmap="YlGnBu", norm="log", vmin=most / 1e12, vmax=most / 1e9)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("to server")
    axes.set_ylabel("from server")
    axes.set_xticks(range(0, 16, 3))
    axes.set_yticks(range(0, 16, 3))
    axes.grid(visible=False)
    canvas.colorbar(image, ax=axes, label="GB an iteration", shrink=0.75)


def _sum(row: Any) -> Any:
    return np.array(row["all_reduce"]) + np.array(row["mp"])


def _csv(results: Results) -> list[dict[str, Any]]:
    return [
        {
            **{k: str(v) for k, v in p.items()},
            **{"source": a, "target": b, "kind": kind, "bytes": size},
        }
        for p, row in results
        for kind in ("all_reduce", "mp", "on_links")
        for a, line in enumerate(row.get(kind, ()))
        for b, size in enumerate(line)
        if size
    ]


def _figure_1(results: Results, quick: bool) -> Made:
    data, hybrid = results[0][1], results[1][1]

    def draw(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2)
        most = float(_sum(data).max())
        _heatmap(canvas, left, _sum(data), "(a) data parallelism", most)
        _heatmap(canvas, right, _sum(hybrid), "(b) tables on servers 0, 3, 8 and 13", most)

    apart = np.array(hybrid["mp"])
    quantities = [
        Quantity(
            "largest transfer, data parallelism (GB)",
            float(_sum(data).max()) / 1e9,
            _ALL_REDUCE / 1e9,
            "dlrm",
        ),
        Quantity(
            "largest transfer, hybrid (GB)",
            np.array(hybrid["all_reduce"]).max() / 1e9,
            _HYBRID / 1e9,
            "dlrm",
        ),
        Quantity(
            "MP transfer between a table's server and another (MB)",
            float(apart[apart > 0].min()) / 1e6,
            _MP / 1e6,
            "dlrm",
        ),
    ]
    return Made(_csv(results), draw, quantities, (8.5, 3.9))


def _circle(axes: Axes, links: list[tuple[int, int]], title: str, index: int) -> None:
    places = [(math.sin(math.tau * i / 16), math.cos(math.tau * i / 16)) for i in range(16)]
    for a, b in links:
        (x, y), (to_x, to_y) = places[a], places[b]
        axes.annotate(
            "",
            (to_x, to_y),
            (x, y),
            arrowprops={
                "arrowstyle": "-|>",
                "color": plots.colour(index),
                "shrinkA": 7,
                "shrinkB": 7,
                "lw": 1.0,
            },
        )
    for server, (x, y) in enumerate(places):
        axes.text(x, y, str(server), ha="center", va="center", fontsize=8)
    axes.set_xlim(-1.15, 1.15)
    axes.set_ylim(-1.15, 1.15)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title(title, fontsize=9)


def _ring(stride: int) -> list[tuple[int, int]]:
    return [(i, (i + stride) % 16) for i in range(16)]


def _three_cells(quick: bool) -> list[Cell]:
    return [_rings([stride], hybrid=True) for stride in _STRIDES]


def _figure_7(results: Results, quick: bool) -> Made:
    def draw(canvas: Canvas) -> None:
        panels = zip(canvas.subplots(1, 3), _STRIDES, strict=True)
        for index, (axes, stride) in enumerate(panels):
            _circle(axes, _ring(stride), f"+{stride}: server i sends to i + {stride} mod 16", index)

    hops = {
        stride: sum(size > 0 for line in row["all_reduce"] for size in line)
        for stride, (_, row) in zip(_STRIDES, results, strict=True)
    }
    quantities = [
        Quantity(f"servers that ring +{stride} joins", float(count), 16.0)
        for stride, count in hops.items()
    ]
    csv = [
        {"stride": stride, "source": a, "target": b}
        for stride in _STRIDES
        for a, b in _ring(stride)
    ]
    return Made(csv, draw, quantities, (9.0, 3.4))


def _figure_8(results: Results, quick: bool) -> Made:
    most = max(float(_sum(row).max()) for _, row in results)

    def draw(canvas: Canvas) -> None:
        panels = zip(canvas.subplots(1, 3), _STRIDES, results, strict=True)
        for axes, stride, (_, row) in panels:
            _heatmap(canvas, axes, _sum(row), f"AllReduce over ring +{stride}", most)

    quantities = [
        Quantity(
            f"largest AllReduce transfer, ring +{stride} (GB)",
            np.array(row["all_reduce"]).max() / 1e9,
            _HYBRID / 1e9,
            "dlrm",
        )
        for stride, (_, row) in zip(_STRIDES, results, strict=True)
    ]
    same = all(row["mp"] == results[0][1]["mp"] for _, row in results)
    quantities.append(Quantity("MP transfers stay (1: the same for all rings)", float(same), 1.0))
    return Made(_csv(results), draw, quantities, (12.0, 3.8))


def _figure_9_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of("figures.cells.traffic:on_topoopt", degree=3, mode="paper"),
        _rings([1], hybrid=True),
    ]


def _figure_9(results: Results, quick: bool) -> Made:
    here, single = results[0][1], results[1][1]
    most = float(_sum(single).max())

    def draw(canvas: Canvas) -> None:
        left, middle, right = canvas.subplots(1, 3)
        strides = sorted({(ring[1] - ring[0]) % 16 for ring in here["rings"]})
        for index, ring in enumerate(here["rings"]):
            hops = list(zip(ring, [*ring[1:], ring[0]], strict=True))
            named = ", ".join(f"+{stride}" for stride in strides)
            _circle(left, hops, f"TopoOpt's rings, d = 3: {named}", index)
        _heatmap(canvas, middle, _sum(here), "what servers exchange", most)
        _heatmap(canvas, right, here["on_links"], "what crosses links, relayed too", most)

    busiest = np.array(here["on_links"]).max()
    quantities = [
        Quantity(
            "largest AllReduce transfer over that on one ring",
            np.array(here["all_reduce"]).max() / np.array(single["all_reduce"]).max(),
            model="dlrm",
            mode="paper",
        ),
        Quantity(
            "busiest link over the largest transfer of Figure 8",
            float(busiest) / most,
            model="dlrm",
            mode="paper",
        ),
    ]
    return Made(_csv(results), draw, quantities, (12.0, 3.8))


def _tree_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of("figures.cells.traffic:on_trees", step=step, offset=offset)
        for step, offset in _TREES
    ]


def _figure_22(results: Results, quick: bool) -> Made:
    most = max(float(_sum(row).max()) for _, row in results)

    def draw(canvas: Canvas) -> None:
        panels = zip(canvas.subplots(1, 3), results, strict=True)
        for axes, (p, row) in panels:
            title = f"AllReduce over two trees, inner servers in steps of {p['step']}"
            _heatmap(canvas, axes, _sum(row), title, most)

    sent = [np.array(row["all_reduce"]).sum(axis=1) for _, row in results]
    equal = min(int((own == np.median(own)).sum()) for own in sent)
    name = "servers that send equally much in every permutation: all but the roots"
    largest = np.array(results[0][1]["all_reduce"]).max() / 1e9
    quantities = [
        Quantity(name, float(equal), _NO_ROOTS, "dlrm"),
        Quantity("largest AllReduce transfer (GB)", largest, model="dlrm"),
    ]
    return Made(_csv(results), draw, quantities, (12.0, 3.8))


def _figure_23(results: Results, quick: bool) -> Made:
    def draw(canvas: Canvas) -> None:
        for column, (p, row) in zip(canvas.subplots(2, 3).T, results, strict=True):
            for index, (axes, parents) in enumerate(zip(column, row["trees"], strict=True)):
                _tree(axes, parents, p, index)

    csv = [
        {**p, "tree": index, "server": server, "parent": parent}
        for p, row in results
        for index, parents in enumerate(row["trees"])
        for server, parent in enumerate(parents)
    ]
    quantities = []
    for p, row in results:
        inner = [set(parents) - {None} for parents in row["trees"]]
        name = f"servers that are inner in one tree, leaves in the other, steps of {p['step']}"
        quantities.append(Quantity(name, float(len(inner[0] ^ inner[1]))))
    return Made(csv, draw, quantities, (12.0, 5.0))


def _tree(axes: Axes, parents: list[int | None], p: dict[str, int], flip: int) -> None:
    """Servers in the order of their places in the tree; a place's lowest set bit is its height."""
    places = {
        relabelled(place ^ flip, **p): (place, (place or 32) & -(place or 32))
        for place in range(16)
    }
    for server, parent in enumerate(parents):
        x, bit = places[server]
        y = bit.bit_length()
        if parent is not None:
            above, its_bit = places[parent]
            axes.plot([x, above], [y, its_bit.bit_length()], color=plots.colour(flip), zorder=1)
        axes.text(x, y, str(server), ha="center", va="center", fontsize=8, zorder=2,
                  bbox={"boxstyle": "circle", "fc": "w", "ec": "0.6"})  # fmt: skip
    axes.set_axis_off()
    axes.set_title(f"tree {flip + 1}, inner servers in steps of {p['step']}", fontsize=9)


def _figure_1_cells(quick: bool) -> list[Cell]:
    return [_rings([1], hybrid=False), _rings([1], hybrid=True)]


FIGURES = (
    Figure(
        *("1", "traffic of DLRM on 16 servers, one ring"),
        about="data parallelism beside tables on four servers (section 2.1)",
        cells=_figure_1_cells,
        make=_figure_1,
    ),
    Figure(
        *("7", "ring-AllReduce permutations of 16 servers"),
        about="rings of three strides (section 4.3)",
        cells=_three_cells,
        make=_figure_7,
    ),
    Figure(
        *("8", "traffic of DLRM on 16 servers for three permutations"),
        about="AllReduce moves with the ring, MP does not (section 4.3)",
        cells=_three_cells,
        make=_figure_8,
    ),
    Figure(
        *("9", "TopoOpt's network for DLRM on 16 servers, and its traffic"),
        about="several permutations together balance AllReduce (section 4.3)",
        cells=_figure_9_cells,
        make=_figure_9,
    ),
    Figure(
        *("22", "traffic of DLRM on 16 servers over double binary trees"),
        about="three permutations of the servers move AllReduce transfers, MP stays (Appendix A)",
        cells=_tree_cells,
        make=_figure_22,
    ),
    Figure(
        *("23", "double binary trees of 16 servers"),
        about="three permutations of the servers (Appendix A)",
        cells=_tree_cells,
        make=_figure_23,
    ),
)
