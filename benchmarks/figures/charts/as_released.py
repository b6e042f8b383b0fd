"""Figure 11 with models, strategies and networks as in the simulations that the paper released."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import NEAR, Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_DATA_PARALLEL, _BY_LOT, _APART = "data parallelism", "tables by lot", "branches apart"
_JOBS = (
    ("candle", _DATA_PARALLEL),
    ("candle", _APART),
    ("vgg:released", _DATA_PARALLEL),
    ("bert:released", _DATA_PARALLEL),
    ("dlrm", _BY_LOT),
    ("ncf", _BY_LOT),
)
_IN_PACKETS = ("vgg:released", "bert:released", "dlrm")
_GBPS = (10.0, 25.0, 40.0, 100.0, 200.0)
_PACKET_GBPS = 100.0
_DEGREE = 4
# Section 5.3: means over the bandwidths.
FAT_TREE = {"candle": 2.8, "vgg": 2.8, "bert": 3.0, "dlrm": 2.8, "ncf": 2.1}
IDEAL = {"candle": 1.0, "dlrm": 1.3, "ncf": 1.7}
_TREE = "Fat-tree, d B' = B"
_BOUND = (
    "TopoOpt has {degree} times the tree's bandwidth, and a job of nothing but communication is "
    "so many times slower on the tree; an iteration computes {compute:.0%} of its time on it"
)
_BETWEEN = (
    "the strategy is not stated: data parallelism and branches of the model on servers of their "
    "own give {ratios}"
)
_RELAYED = (
    "{tax:.3f} bytes are sent for each that has to be; if relaying were all that costs time, and "
    "links were balanced, the paper's ratio would need {paper:g}"
)


def _cells(quick: bool) -> list[Cell]:
    def cell(model: str, strategy: str, gbps: float, level: str) -> Cell:
        return Cell.of(
            "figures.cells.as_released:iteration",
            **{"model": model, "servers": 16 if quick else 128, "degree": _DEGREE, "gbps": gbps},
            **{"strategy": strategy, "level": level},
            seed=0,
        )

    rates = (25.0, 100.0) if quick else _GBPS
    return [
        *(cell(*job, gbps, "flow") for job in _JOBS for gbps in rates),
        *(cell(*job, _PACKET_GBPS, "packet") for job in _JOBS if job[0] in _IN_PACKETS),
    ]


def _make(results: Results, quick: bool) -> Made:
    rows: dict[tuple[str, str], list[tuple[dict[str, Any], Any]]] = {}
    packets: list[tuple[dict[str, Any], Any]] = []
    for p, row in results:
        if p["level"] == "packet":
            packets.append((p, row))
        else:
            rows.setdefault((p["model"], p["strategy"]), []).append((p, row))

    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(2, 3, squeeze=False).flat
        for axes, (job, found) in zip(panels, rows.items(), strict=False):
            curves = {
                name: [(p["gbps"], row["iteration_s"][name] * 1e3) for p, row in found]
                for name in found[0][1]["iteration_s"]
            }
            plots.lines(axes, curves, "link bandwidth B (Gb/s)", "iteration time (ms)", log="xy")
            axes.set_title(", ".join(job), fontsize=9)
        for empty in panels[len(rows) :]:
            empty.set_axis_off()
        plots.legend_below(canvas, axes, 3)

    quantities = [
        quantity
        for (model, strategy), found in rows.items()
        for quantity in _ratios(model, strategy, [row for _, row in found], quick)
    ]
    _explain_candle(quantities)
    quantities += [_packets_over_flows(p, row, rows) for p, row in packets]
    csv = [
        {
            **{"model": p["model"], "strategy": p["strategy"], "level": p["level"]},
            **{"gbps": p["gbps"], "network": name, "iteration_s": time_s},
            **{"compute_s": row["compute_s"], "bandwidth_tax": row["bandwidth_tax"]},
        }
        for p, row in results
        for name, time_s in row["iteration_s"].items()
    ]
    return Made(csv, draw, quantities, (9.0, 5.2))


def _ratios(model: str, strategy: str, rows: list[Any], quick: bool) -> list[Quantity]:
    """Of one strategy, over the bandwidths."""
    times = [row["iteration_s"] for row in rows]
    name = model.partition(":")[0]
    compute = mean(row["compute_s"] / row["iteration_s"][_TREE] for row in rows)
    tax = mean(row["bandwidth_tax"] for row in rows)
    relayed = _RELAYED.format(tax=tax, paper=IDEAL[name]) if name in IDEAL else ""
    small = "quick: 16 servers, two bandwidths" if quick else ""
    return [
        Quantity(
            f"Fat-tree / TopoOpt, d = {_DEGREE}",
            mean(t[_TREE] / t["TopoOpt"] for t in times),
            FAT_TREE[name],
            name,
            f"as released, {strategy}; {_TREE}",
            reason=small or _BOUND.format(degree=_DEGREE, compute=compute),
        ),
        Quantity(
            f"TopoOpt / Ideal Switch, d = {_DEGREE}",
            mean(t["TopoOpt"] / t["Ideal Switch"] for t in times),
            IDEAL.get(name),
            name,
            f"as released, {strategy}",
            reason=small or relayed,
        ),
    ]


def _explain_candle(quantities: list[Quantity]) -> None:
    """Gives the two strategies of CANDLE their reason, where the paper's ratio is between them, or
    is that of one."""
    for upper, paper in (("Fat-tree", FAT_TREE["candle"]), ("TopoOpt", IDEAL["candle"])):
        mine = [
            i
            for i, q in enumerate(quantities)
            if q.model == "candle" and q.quantity.startswith(f"{upper} /")
        ]
        ratios = [quantities[i].ours for i in mine]
        between = len(ratios) > 1 and min(ratios) < paper * (1 + NEAR) < max(ratios)
        if between:
            text = " and ".join(f"{ratio:.2f}" for ratio in ratios)
            for i in mine:
                quantities[i] = replace(quantities[i], reason=_BETWEEN.format(ratios=text))


def _packets_over_flows(
    p: dict[str, Any],
    row: Any,
    rows: dict[tuple[str, str], list[tuple[dict[str, Any], Any]]],
) -> Quantity:
    """TopoOpt's iteration with DCTCP and rings in steps over that of the flow level."""
    flows = next(r for q, r in rows[p["model"], p["strategy"]] if q["gbps"] == p["gbps"])
    return Quantity(
        f"packet level over flow level, TopoOpt, B = {p['gbps']:g} Gb/s",
        row["iteration_s"]["TopoOpt"] / flows["iteration_s"]["TopoOpt"],
        model=p["model"].partition(":")[0],
        mode=f"as released, {p['strategy']}",
    )


def _cost_cells(quick: bool) -> list[Cell]:
    """Data parallelism and tables by lot: the parts of the batch of which there are times."""
    return [
        Cell.of(
            "figures.cells.as_released:iteration",
            **{"model": model, "servers": 128, "degree": _DEGREE, "gbps": gbps},
            **{"strategy": strategy, "level": "flow", "costs": "released"},
            seed=0,
        )
        for model, strategy in (_JOBS[2:3] if quick else _JOBS)
        if strategy != _APART
        for gbps in ((25.0, 100.0) if quick else _GBPS)
    ]


FIGURES = (
    Figure(
        *("11-released", "iteration time as the released simulations set it, d = 4"),
        about="sizes, strategies and networks of the public artifact (section 5.3)",
        cells=_cells,
        make=_make,
        full="128 servers",
        quick="16 servers, two bandwidths",
    ),
    Figure(
        *("11-released-costs", "iteration time with the artifact's computing times, d = 4"),
        about="as 11-released, with what the authors measured of operators on an A100",
        cells=_cost_cells,
        make=_make,
        full="128 servers",
        quick="VGG, two bandwidths",
    ),
)
