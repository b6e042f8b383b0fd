"""Figures 12 to 15: all-to-all traffic, what it costs, path lengths and balance of links."""

from __future__ import annotations

from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.cells.networks import FP32_BYTES, PAPER_BYTES
from figures.figure import NEAR, Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

MODES = ("released", "paper", "best")
_DEGREES = (4, 8)
_GBPS = 100.0
_BATCHES = (64, 128, 256, 512, 1024, 2048)  # a GPU
_TREES = ("fat-tree, Table 2", "fat-tree, d B' = B")
_SEEDS = (0, 1, 2, 3, 4)  # of the artifact's routes, which are drawn by lot
_MEAN_HOPS = {4: 5.7, 8: 3.0}  # section 5.5
_BELOW = {4: 0.39, 8: 0.59}  # section 5.5
_TAX = {(4, 64): 1.11, (8, 64): 1.05, (4, 2048): 3.03}  # section 5.5
_SHORTER = "other links than the artifact's: the paper's number is its d / 2 strides both ways"
_BEST = "networks searched for few hops: better than the paper's"
_OWN_TRAFFIC = (
    "our DLRM moves {ours:.3f} bytes of all-to-all per byte of AllReduce at this batch, the "
    "paper's {paper:.3f} (80 % at 2048): Appendix D counts 8 bytes for an activation, FP32 has 4. "
    "With 8 the ratio is {wide:.3f}, and the tax that of the row below"
)


def _servers(quick: bool) -> int:
    return 16 if quick else 128


def _path_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.networks:paths_and_loads",
            mode=mode,
            servers=_servers(quick),
            degree=degree,
            batch=128,
            seed=seed,
        )
        for degree in _DEGREES
        for mode in MODES
        for seed in (_SEEDS if mode == "released" and not quick else (0,))
    ]


def _figure_14(results: Results, quick: bool) -> Made:
    firsts = [(p, row) for p, row in results if p["seed"] == 0]

    def draw(canvas: Canvas) -> None:
        for axes, degree in zip(canvas.subplots(1, 2, sharey=True), _DEGREES, strict=True):
            curves = {}
            for p, row in firsts:
                if p["degree"] == degree:
                    mode = p["mode"]
                    curves[f"{mode}: mean {row['mean_hops']:.2f}"] = _cdf(row["hops"])
            plots.steps(axes, curves, "path length (hops)")
            axes.set_title(f"d = {degree} (paper: mean {_MEAN_HOPS[degree]:g})", fontsize=9)
            axes.legend(loc="lower right")

    quantities = [
        Quantity(
            f"mean path length, d = {p['degree']}",
            row["mean_hops"],
            _MEAN_HOPS[p["degree"]],
            mode=p["mode"],
            reason="" if quick else (_BEST if p["mode"] == "best" else _SHORTER),
        )
        for p, row in firsts
    ]
    csv = [
        {"mode": p["mode"], "degree": p["degree"], "hops": hops, "pairs": pairs}
        for p, row in firsts
        for hops, pairs in row["hops"].items()
    ]
    return Made(csv, draw, quantities, (7.5, 3.6))


def _cdf(hops: dict[str, int]) -> list[tuple[float, float]]:
    total, below, points = sum(hops.values()), 0, []
    for length, pairs in sorted((int(h), n) for h, n in hops.items()):
        below += pairs
        points.append((float(length), below / total))
    return points


def _figure_15(results: Results, quick: bool) -> Made:
    firsts = [(p, row) for p, row in results if p["seed"] == 0]

    def draw(canvas: Canvas) -> None:
        for axes, degree in zip(canvas.subplots(1, 2, sharey=True), _DEGREES, strict=True):
            curves = {
                p["mode"]: [(size / 1e6, part) for size, part in row["load_cdf"]]
                for p, row in firsts
                if p["degree"] == degree
            }
            plots.steps(axes, curves, "bytes of an all-to-all on a link (MB)")
            title = f"d = {degree} (paper: least is {_BELOW[degree]:.0%} below most)"
            axes.set_title(title, fontsize=9)
        plots.legend_below(canvas, axes)

    quantities = []
    for degree in _DEGREES:
        for mode in MODES:
            rows = [r for p, r in results if (p["degree"], p["mode"]) == (degree, mode)]
            below = mean(row["least_below_most"] for row in rows)
            reason = (
                "weighted shortest paths, or optimal routing, balance the links better than "
                "the artifact's one path by lot"
            )
            quantities.append(
                Quantity(
                    f"least loaded link below the busiest, d = {degree}",
                    *(below, _BELOW[degree]),
                    mode=mode,
                    reason="" if quick else reason,
                )
            )
    csv = [
        {"mode": p["mode"], "degree": p["degree"], "seed": p["seed"], "bytes": size, "cdf": part}
        for p, row in results
        for size, part in row["load_cdf"]
    ]
    csv = [{**row, "drawn_by": row.pop("seed")} for row in csv]
    return Made(csv, draw, quantities, (7.5, 3.6))


def _tax_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.networks:tax",
            **{"mode": mode, "servers": _servers(quick), "degree": degree},
            batch=batch,
            seed=0,
        )
        for degree in _DEGREES
        for mode in MODES
        for batch in ((64, 2048) if quick else _BATCHES)
    ] + [
        Cell.of(
            "figures.cells.networks:tax_in_packets",
            **{"mode": mode, "servers": _servers(quick), "degree": 4, "batch": batch, "seed": 0},
            limit_s=1800,
        )
        for mode in MODES
        for batch in ((64,) if quick else (64, 2048))
    ]


def _figure_13(results: Results, quick: bool) -> Made:
    counted = [(p, row) for p, row in results if "papers_ratio" in row]
    batches = sorted({p["batch"] for p, _ in counted})
    found = {(p["degree"], p["mode"], p["batch"]): row for p, row in counted}

    def draw(canvas: Canvas) -> None:
        for axes, degree in zip(canvas.subplots(1, 2, sharey=True), _DEGREES, strict=True):
            series = {
                mode: [found[degree, mode, batch]["tax_at_the_papers_ratio"] for batch in batches]
                for mode in MODES
            }
            plots.bars(axes, [str(b) for b in batches], series, "bandwidth tax")
            axes.set_xlabel("batch of a GPU (all-to-all: 80 % of AllReduce at 2048)")
            axes.set_title(f"d = {degree}", fontsize=9)
            axes.legend(loc="upper left")

    quantities = []
    for (degree, batch), paper in _TAX.items():
        for mode in MODES:
            row = found[degree, mode, batch]
            named = f"bandwidth tax, d = {degree}, batch {batch}"
            own = _OWN_TRAFFIC.format(
                ours=row["all_to_all_over_all_reduce"],
                **{"paper": row["papers_ratio"], "wide": row["ratio_at_8_bytes"]},
            )
            quantities += [
                Quantity(named, row["tax"], paper, "dlrm", mode, reason=own),
                Quantity(
                    f"{named}, 8 bytes for an activation",
                    *(row["tax_at_8_bytes"], paper, "dlrm", mode),
                    reason="" if quick else _BEST,
                ),
            ]
    csv = [{**_job_of(p), "level": "", **row} for p, row in counted]
    for p, row in results:
        if "papers_ratio" in row:
            continue
        csv += [
            {**_job_of(p), "level": level, "tax": row["tax"][level], "iteration_s": seconds}
            for level, seconds in row["iteration_s"].items()
        ]
        job = f"d = {p['degree']}, batch {p['batch']}"
        for what, levels in (("tax", row["tax"]), ("iteration time", row["iteration_s"])):
            ratio = levels["packet"] / levels["flow"]
            name = f"packet level over flow level, {what}, {job}"
            quantities.append(Quantity(name, ratio, None, "dlrm", p["mode"]))
    return Made(csv, draw, quantities, (9.0, 3.8))


def _job_of(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: parameters[name] for name in ("mode", "degree", "batch")}


def _batch_cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.networks:batch_sweep",
            **{"servers": _servers(quick), "degree": degree, "gbps": _GBPS},
            **{"batch": batch, "activation_bytes": size, "seed": 0},
        )
        for size in (FP32_BYTES, PAPER_BYTES)
        for degree in _DEGREES
        for batch in ((128, 2048) if quick else _BATCHES)
    ]


def _figure_12(results: Results, quick: bool) -> Made:
    found = {(p["activation_bytes"], p["degree"], p["batch"]): row for p, row in results}
    labels = {mode: f"TopoOpt, {mode}" for mode in MODES}
    names = (*MODES, "ideal-switch", *_TREES)

    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(2, 2).ravel()
        kinds = product((FP32_BYTES, PAPER_BYTES), _DEGREES)
        for axes, (size, degree) in zip(panels, kinds, strict=True):
            here = [
                (key[2], row) for key, row in sorted(found.items()) if key[:2] == (size, degree)
            ]
            curves = {
                labels.get(name, name): [(b, row["iteration_s"][name] * 1e3) for b, row in here]
                for name in names
            }
            plots.lines(axes, curves, "batch of a GPU", "iteration time (ms)", log="xy")
            axes.set_title(f"d = {degree}, {size} bytes for an activation", fontsize=9)
        plots.legend_below(canvas, axes)

    quantities: list[Quantity] = []
    for size, (batch, paper) in product((FP32_BYTES, PAPER_BYTES), ((128, 2.7), (2048, 0.9))):
        row = found[size, 4, batch]
        of_size = f", {size} bytes for an activation" if size != FP32_BYTES else ""
        for mode, tree in product(MODES, _TREES):
            quantities.append(
                Quantity(
                    f"Fat-tree / TopoOpt, d = 4, batch {batch}{of_size}",
                    row["iteration_s"][tree] / row["iteration_s"][mode],
                    *(paper, "dlrm", f"{mode}; {tree}"),
                    reason="" if quick else why_12(tree, batch, _GBPS, row),
                )
            )
    csv: list[dict[str, Any]] = [
        {
            **{name: p[name] for name in ("activation_bytes", "degree", "batch")},
            **{"network": name, "iteration_s": time_s},
            "all_to_all_over_all_reduce": row["all_to_all_over_all_reduce"],
        }
        for p, row in results
        for name, time_s in row["iteration_s"].items()
    ]
    return Made(csv, draw, quantities, (8.5, 7.4))


def why_12(tree: str, batch: int, gbps: float, row: dict[str, Any]) -> str:
    ratio = row["all_to_all_over_all_reduce"]
    rate = row["table_2_gbps"]
    stated = 0.8 * batch / 2048  # section 5.4
    if tree == _TREES[0] and rate > gbps:
        return (
            f"the tree of equal cost has {rate:.0f} Gb/s a server by the prices of Table 2, "
            f"{rate / gbps:.2f} times the rate of one with d B' = B"
        )
    if ratio < (1 - NEAR) * stated:
        return (
            f"all-to-all is {ratio:.3f} of AllReduce here, {stated:.3f} in the paper: it counts 8 "
            "bytes for an activation (Appendix D), as rows below do"
        )
    return "this network is searched for few hops: it relays less than the paper's"


FIGURES = (
    Figure(
        *("12", "impact of all-to-all traffic, DLRM with 128 tables"),
        about="iteration time over the batch (section 5.4)",
        cells=_batch_cells,
        make=_figure_12,
        full="128 servers",
        quick="16 servers, two batches",
    ),
    Figure(
        *("13", "bandwidth tax, DLRM with 128 tables"),
        about="bytes on links over bytes asked for (section 5.5)",
        cells=_tax_cells,
        make=_figure_13,
        full="128 servers",
        quick="16 servers, two batches",
    ),
    Figure(
        *("14", "path lengths of all pairs of servers"),
        about="their distribution in every mode of TopologyFinder (section 5.5)",
        cells=_path_cells,
        make=_figure_14,
        full="128 servers",
        quick="16 servers",
    ),
    Figure(
        *("15", "load of links under all-to-all traffic, batch 128"),
        about="the distribution of bytes over links (section 5.5)",
        cells=_path_cells,
        make=_figure_15,
        full="128 servers",
        quick="16 servers",
    ),
)
