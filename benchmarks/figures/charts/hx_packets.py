"""Figures 11 to 13 and 17 of the HammingMesh paper: all-to-all, permutations and AllReduce."""

from __future__ import annotations

from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.cells.hx_packets import SAMPLES
from figures.figure import Figure, Made, Quantity
from figures.papers.hammingmesh import MESSAGE_BYTES
from figures.papers.hammingmesh import TABLE_II as _TABLE_II

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_TREE = "nonblocking fat tree"
_NETWORKS = (
    _TREE,
    *("50 % tapered fat tree", "75 % tapered fat tree", "Dragonfly", "2D HyperX (Hx1Mesh)"),
    *("Hx2Mesh", "Hx4Mesh", "2D torus"),
)
# Table II, small cluster, of messages of 1 MiB; the text has no number for other sizes.
_PAPER = dict(zip(_NETWORKS, (99.9, 51.2, 25.7, 62.9, 91.6, 25.4, 11.3, 2.0), strict=True))
_UNEVEN = "paper: leaves of 32 with 16 and 8 uplinks, shift by shift (51.18, 25.74 %: tested)"
_REASONS = {
    "50 % tapered fat tree": _UNEVEN,
    "75 % tapered fat tree": _UNEVEN,
    "Dragonfly": "paper: UGAL-L; here shortest paths; shift by shift at most 66.2 % (tested)",
    "2D HyperX (Hx1Mesh)": "accelerators forward: 51.6 % is all that four ports leave",
    "2D torus": "64 shifts far apart overlap here; one after the other leave 2.5 %",
}
_LARGEST = 1 << 18
_SAMPLED = 1 << 16  # of which several samples of the shifts are simulated
_SIZES = (1 << 13, _SAMPLED, _LARGEST)
# of an AllReduce: 1 MiB to 256 GiB
_MESSAGES = tuple(1 << power for power in range(20, 39, 2))
_LEVELS = (("small", "flow"), ("small", "packet"), ("large", "flow"))
_TOO_SHORT = "32 766 steps of 100 ns and more; the paper says of no message how large it is"
_PERMUTATIONS = {"message_bytes": 1 << 20, "permutations": 2, "seed": 0}


def _all_to_all_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.hx_packets:all_to_all",
            **{"network": network, "message_bytes": size, "sample": sample, "seed": 0},
        )
        for network in (_NETWORKS[-3:-1] if quick else _NETWORKS)
        for size in (_SIZES[:1] if quick else _SIZES)
        for sample in range(SAMPLES if size == _SAMPLED else 1)
    ]


def _make_all_to_all(results: Results, quick: bool) -> Made:
    curves: dict[str, list[tuple[float, float]]] = {}
    samples: dict[str, list[float]] = {}
    for p, row in results:
        if p["sample"] == 0:
            curves.setdefault(p["network"], []).append((p["message_bytes"], 100 * row["share"]))
        if p["message_bytes"] == _SAMPLED:
            samples.setdefault(p["network"], []).append(100 * row["share"])

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        x, y = "message (bytes)", "all-to-all bandwidth (% of injection)"
        plots.lines(axes, curves, x, y, log="xy")
        plots.legend_below(canvas, axes)

    quantities = [
        Quantity(
            f"all-to-all (% of injection), messages of {size >> 10:.0f} KiB",
            percent,
            _PAPER[network] if size == _LARGEST else None,
            model=network,
            reason=_REASONS.get(network, "") if size == _LARGEST else "",
        )
        for network, points in curves.items()
        for size, percent in ((int(size), percent) for size, percent in points)
    ]
    quantities += [
        Quantity(f"{name} of {SAMPLES} samples of 64 shifts, 64 KiB", value, model=network)
        for network, shares in samples.items()
        for name, value in (("mean", mean(shares)), ("standard deviation", stdev(shares)))
    ]
    return Made([{**p, **row} for p, row in results], draw, quantities)


def _permutation_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of("figures.cells.hx_packets:permutation", network=network, **_PERMUTATIONS)
        for network in ((_TREE, *_NETWORKS[-3:-1]) if quick else _NETWORKS)
    ]


def _make_permutation(results: Results, quick: bool) -> Made:
    rows: list[dict[str, Any]] = []
    for p, row in results:
        percentiles = {f"p{part}": value for part, value in row["percentiles"].items()}
        plain = {name: row[name] for name in ("mean", "cost_dollars")}
        rows.append({"network": p["network"], **plain, **percentiles})
    tree = rows[0]["cost_dollars"] / rows[0]["mean"]
    for row in rows:
        row["relative_cost"] = row["cost_dollars"] / row["mean"] / tree

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        boxes = [
            {
                "label": row["network"].replace(" fat tree", "\nfat tree").replace(" (", "\n("),
                **{"whislo": 100 * row["p5"], "q1": 100 * row["p25"], "med": 100 * row["p50"]},
                **{"q3": 100 * row["p75"], "whishi": 100 * row["p95"], "mean": 100 * row["mean"]},
            }
            for row in rows
        ]
        axes.bxp(boxes, showfliers=False, showmeans=True)
        axes.set_ylabel("received (% of injection)")
        axes.tick_params("x", labelsize=6)

    quantities = [
        Quantity(words, scale * row[column], model=row["network"])
        for row in rows
        for words, column, scale in (
            ("permutation, mean received (% of injection)", "mean", 100.0),
            ("permutation, 5th percentile (% of injection)", "p5", 100.0),
            ("permutation, cost / mean bandwidth, fat tree = 1", "relative_cost", 1.0),
        )
    ]
    return Made(rows, draw, quantities, (8.0, 4.2))


def _all_reduce_cells(quick: bool) -> list[Cell]:
    """Rows and columns on networks that have some; packet by packet where that takes seconds."""
    ring_only = _NETWORKS[:4]
    return [
        Cell.of(
            "figures.cells.hx_packets:all_reduce",
            **{"network": network, "size": size, "algorithm": algorithm, "level": level},
            **{"message_bytes": _MESSAGES[:3] if level == "packet" else _MESSAGES, "seed": 0},
        )
        for size, level in _LEVELS[: 1 if quick else None]
        for network in (_NETWORKS[-3:-1] if quick else _NETWORKS)
        for algorithm in (("rings",) if network in ring_only else ("rings", "torus"))
    ]


def _make_all_reduce(results: Results, quick: bool) -> Made:
    rows = [
        {
            "cluster": p["size"],
            **{name: p[name] for name in ("network", "algorithm", "level")},
            "message_bytes": message_bytes,
            "share": share,
        }
        for p, row in results
        for message_bytes, share in zip(p["message_bytes"], row["shares"], strict=True)
    ]
    sizes = list(dict.fromkeys(p["size"] for p, _ in results))
    names = list(dict.fromkeys(p["network"] for p, _ in results))

    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
        for axes, size in zip(panels, sizes, strict=True):
            for p, row in results:
                if p["size"] == size:
                    _draw_all_reduce(axes, names.index(p["network"]), p, row["shares"])
            axes.set_xscale("log", base=2)
            ticks = _MESSAGES[::2]
            axes.set_xticks(ticks, [f"{tick >> 20:g}" for tick in ticks])
            axes.set_xlabel("message of an accelerator (MiB)")
            axes.set_ylabel("AllReduce bandwidth (% of half of injection)")
            figure, about = ("17", "1 000") if size == "small" else ("13", "16 000")
            axes.set_title(f"Figure {figure}: about {about} accelerators", fontsize=9)
        plots.legend_below(canvas, panels[0], columns=4)

    quantities = [
        Quantity(
            f"AllReduce by {row['algorithm']} (% of half of injection), {row['cluster']} cluster, "
            f"{row['message_bytes'] >> 20} MiB, {row['level']} level",
            100 * row["share"],
            _TABLE_II[row["cluster"]][row["network"]].allreduce_percent
            if row["message_bytes"] == MESSAGE_BYTES and row["algorithm"] == "rings"
            else None,
            model=row["network"],
            reason=_TOO_SHORT
            if (row["cluster"], row["algorithm"], row["message_bytes"])
            == ("large", "rings", MESSAGE_BYTES)
            else "",
        )
        for row in rows
        if row["message_bytes"] in (_MESSAGES[2], MESSAGE_BYTES)
    ]
    return Made(rows, draw, quantities, (11.0, 5.2))


def _draw_all_reduce(axes: Axes, index: int, p: Mapping[str, Any], shares: Sequence[float]) -> None:
    """Rings are solid, rows and columns dashed; the packet level has markers and no line."""
    style = plots.style(index)
    percents = [100 * share for share in shares]
    if p["level"] == "packet":
        filled = "none" if p["algorithm"] == "torus" else style["color"]
        axes.plot(p["message_bytes"], percents, ls="", mfc=filled, **style)
        return
    dashed = p["algorithm"] == "torus"
    label = p["network"] + (", rows and columns" if dashed else "")
    line = "--" if dashed else "-"
    axes.plot(p["message_bytes"], percents, line, color=style["color"], label=label)


FIGURES = (
    Figure(
        "hx-11",
        "HammingMesh, Figure 11: all-to-all bandwidth over the size of a message",
        "shifted all-to-all on the small networks of Table II, 64 of the shifts, packet by packet "
        "with adaptive routing; the paper's numbers are those of its Table II (HammingMesh, V-A1)",
        _all_to_all_cells,
        _make_all_to_all,
        full="64 shifts",
        quick="two networks, 8 KiB",
    ),
    Figure(
        "hx-12",
        "HammingMesh, Figure 12: what accelerators receive in random permutations",
        "two random permutations of 1 MiB on the small networks of Table II, packet by packet "
        "(HammingMesh, V-A1)",
        _permutation_cells,
        _make_permutation,
        full="eight networks",
        quick="three networks",
    ),
    Figure(
        "hx-13",
        "HammingMesh, Figures 13 and 17: AllReduce by rings and by rows and columns",
        "on the networks of Table II at flow level (lines), and packet by packet (markers) for "
        "short messages on the small ones; the paper's numbers are those of its Table II for large "
        "messages, beside ours of 16 GiB (HammingMesh, V-A2 and appendix G)",
        _all_reduce_cells,
        _make_all_reduce,
        full="both clusters",
        quick="two small networks, flow level",
    ),
)
