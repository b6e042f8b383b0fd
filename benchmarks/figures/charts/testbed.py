"""Figures 18 to 21: the testbed of section 6 on emulated hosts."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

from testbed.networks import NETWORKS
from testbed.training import step_ratio
from testbed.workload import LINK_GBPS

from figures import plots
from figures.cell import Cell
from figures.cells.testbed import obstacle
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_MODELS = ("resnet50", "bert", "vgg", "candle", "dlrm")
_BATCHES = (64, 128, 256, 512)
_RATIO_AT_512 = 0.78  # of all-to-all to AllReduce, section 6
_TARGET = "90 % accuracy"
_PAPER_20 = 2.0  # time to it on Switch 25 over that on TopoOpt, section 6
_EMULATED = "emulated hosts, whose links are 2500 times slower than the paper's"
_APART = "predicted iteration against measured, {which}, {what}"


def _size(quick: bool) -> dict[str, Any]:
    if quick:
        return {"servers": 4, "degree": 3, "gbps": LINK_GBPS, "seed": 0}
    return {"servers": 12, "degree": 4, "gbps": LINK_GBPS, "seed": 0}


def _cell(function: str, quick: bool, **parameters: Any) -> Cell:
    name = f"figures.cells.testbed:{function}"
    return Cell.of(name, exclusive=True, limit_s=600.0, **_size(quick), **parameters)


def _backends(network: str) -> list[str]:
    return ["topoopt"] if network == "TopoOpt" else ["topoopt", "gloo"]


# ---- 18: the wiring ----


def _wiring_cells(quick: bool) -> list[Cell]:
    return [_cell("wiring", quick, model="vgg")]


def _figure_18(results: Results, quick: bool) -> Made:
    ((p, row),) = results
    servers, degree = p["servers"], p["degree"]
    rings = row["rings"]

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.set_axis_off()
        axes.set_aspect("equal")
        places = [
            (math.sin(2 * math.pi * s / servers), math.cos(2 * math.pi * s / servers))
            for s in range(servers)
        ]
        _draw_cables(axes, places, row["cables"], rings)
        for server, (x, y) in enumerate(places):
            axes.plot(x, y, "o", color="0.15", markersize=14, zorder=3)
            axes.text(x, y, str(server), color="w", ha="center", va="center", zorder=4)
        canvas.legend(loc="outside lower center", ncols=2)

    csv = [
        {"ingress": ingress, "egress": egress, "servers": servers, "degree": degree}
        for ingress, egress in row["circuits"]
    ]
    quantities = [
        Quantity("hosts", servers, 12.0),
        Quantity("links of a host", degree, 4.0),
        Quantity("simplex circuits on the patch panel", len(row["circuits"])),
        Quantity("AllReduce rings", len(rings)),
    ]
    return Made(csv, draw, quantities, (6.0, 6.6))


def _draw_cables(
    axes: Axes, places: list[tuple[float, float]], cables: list[list[int]], rings: list[list[int]]
) -> None:
    """A cable has the colour of the rings over it; both directions of a stride share one."""
    strides: dict[frozenset[int], int] = {}
    for ring in rings:
        stride = (ring[1] - ring[0]) % len(ring)
        number = min(stride, len(ring) - stride)
        for pair in zip(ring, [*ring[1:], ring[0]], strict=True):
            strides.setdefault(frozenset(pair), number)
    named: dict[int | None, int] = {}
    for source, source_port, target, target_port in cables:
        stride = strides.get(frozenset((source, target)))
        label = None
        if stride not in named:
            named[stride] = len(named)
            label = "circuits of no ring" if stride is None else f"rings of stride {stride}"
        (x, u), (y, v) = zip(places[source], places[target], strict=True)
        axes.plot([x, u], [y, v], color=plots.colour(named[stride]), label=label, zorder=1)
        for port, near, far in ((source_port, (x, y), (u, v)), (target_port, (u, v), (x, y))):
            part = 0.16 / math.dist(near, far)
            at = (near[0] + part * (far[0] - near[0]), near[1] + part * (far[1] - near[1]))
            axes.text(*at, str(port), fontsize=6, ha="center", va="center", zorder=2)


# ---- 19: throughput ----


def _throughput_cells(quick: bool) -> list[Cell]:
    return [
        _cell(
            *("iteration", quick),
            **{"model": model, "network": network, "iterations": 2 if quick else 4},
            backends=_backends(network),
        )
        for model in (("resnet50", "dlrm") if quick else _MODELS)
        for network in NETWORKS
    ]


def _figure_19(results: Results, quick: bool) -> Made:
    csv = _rows(results)
    models = list(dict.fromkeys(p["model"] for p, _ in results))
    series = {
        _bar(network, backend): [
            next(r["samples_per_s"] for r in csv if _is(r, model, network, backend))
            for model in models
        ]
        for network in NETWORKS
        for backend in _backends(network)
    }

    def draw(canvas: Canvas) -> None:
        for axes, model in zip(canvas.subplots(1, len(models)), models, strict=True):
            values = {name: [bars[models.index(model)]] for name, bars in series.items()}
            plots.bars(axes, [model], values, "samples/s" if model == models[0] else "")
            axes.margins(y=0.12)
        plots.legend_below(canvas, axes, 5)

    times = {(r["model"], r["network"], r["backend"]): r["iteration_s"] for r in csv}
    quantities = []
    for model in models:
        own = times[model, "TopoOpt", "topoopt"]
        quantities += [
            Quantity(
                f"throughput of TopoOpt / {network}",
                times[model, network, backend] / own,
                1.0 if network == "Switch 100" else None,
                model,
                backend,
            )
            for network in NETWORKS[1:]
            for backend in _backends(network)
        ]
    quantities += _apart(csv, "throughput of five models")
    return Made(csv, draw, quantities, (10.0, 4.2))


def _is(row: dict[str, Any], model: str, network: str, backend: str) -> bool:
    return (row["model"], row["network"], row["backend"]) == (model, network, backend)


def _bar(network: str, backend: str) -> str:
    return network if network == "TopoOpt" else f"{network}, {backend}"


def _rows(results: Results) -> list[dict[str, Any]]:
    """A row of the CSV for every measured iteration."""
    return [
        {
            **{"model": p["model"], "network": p["network"], "backend": backend},
            **{"servers": p["servers"], "batch": row["samples"]},
            "samples_per_s": row["samples"] / found["iteration_s"],
            **{"iteration_s": found["iteration_s"], "predicted_s": found["predicted_s"]},
            "apart": found["iteration_s"] / found["predicted_s"] - 1,
            **{"compute_s": row["compute_s"], "traffic_ratio": row["traffic_ratio"]},
            **{"bytes_smaller": row["smaller"], "time_stretched": row["stretched"]},
            **{"processors_busy": found["busy"], "load_average": found["load"]},
            **{"wrong_results": found["wrong"], "link_bytes_apart": found["bytes_apart"]},
        }
        for p, row in results
        for backend, found in row["backends"].items()
    ]


def _apart(rows: Iterable[dict[str, Any]], which: str) -> list[Quantity]:
    apart = [abs(row["iteration_s"] / row["predicted_s"] - 1) for row in rows]
    return [
        Quantity(_APART.format(which=which, what="median difference"), median(apart)),
        Quantity(_APART.format(which=which, what="largest difference"), max(apart)),
    ]


# ---- 20: time to accuracy ----


def _accuracy_cells(quick: bool) -> list[Cell]:
    return [
        _cell("accuracy", quick, network=network, backend=backend, steps=60 if quick else 100)
        for network in NETWORKS
        for backend in _backends(network)
    ]


def _figure_20(results: Results, quick: bool) -> Made:
    csv = [
        {
            **{"network": p["network"], "backend": p["backend"], "step": step, "seconds": seconds},
            **{"accuracy": accuracy, "loss": loss},
            **{"step_s": row["step_s"], "predicted_s": row["predicted_s"]},
            **{"compute_s": row["compute_s"], "load_average": row["load"]},
        }
        for p, row in results
        for step, seconds, accuracy, loss in row["points"]
    ]
    found = {(p["network"], p["backend"]): row for p, row in results}

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        curves = {
            _bar(*run): [(at, 100 * accuracy) for _, at, accuracy, _ in row["points"]]
            for run, row in found.items()
        }
        plots.lines(axes, curves, "training time (s)", "test accuracy (%)")
        axes.axhline(90, color="0.4", linewidth=0.8, linestyle="--", label=_TARGET)
        axes.legend(loc="lower right")

    never = [_bar(*run) for run, row in found.items() if row["reached_90_s"] is None]
    if never:
        raise ValueError(f"accuracy: 90 % is not reached on {', '.join(never)}")
    own_s = found["TopoOpt", "topoopt"]["reached_90_s"]
    steps = [
        {"iteration_s": row["step_s"], "predicted_s": row["predicted_s"]} for _, row in results
    ]
    quantities = [
        Quantity(
            f"time to {_TARGET}, {network} / TopoOpt",
            *(row["reached_90_s"] / own_s, _PAPER_20 if network == "Switch 25" else 1.0),
            *("vgg", backend),
            reason=why_20(results[0][0], row["compute_s"] / row["step_s"]),
        )
        for (network, backend), row in found.items()
        if network != "TopoOpt"
    ]
    quantities += _apart(steps, "training on digits")
    return Made(csv, draw, quantities)


def why_20(parameters: dict[str, Any], computing: float) -> str:
    """`computing` is the part of a step on Switch 25. A ratio r of steps needs (d / r - 1) /
    (d - 1)."""
    servers, degree = parameters["servers"], parameters["degree"]
    needed = (degree / _PAPER_20 - 1) / (degree - 1)
    tf32, fp32 = (step_ratio(servers, degree, units) for units in ("tf32", "fp32"))
    return (
        f"computing is {computing:.0%} of a step on Switch 25 here, with convolutions in TF32; a "
        f"factor of {_PAPER_20:g} needs {needed:.0%}. By formula, convolutions in TF32 give "
        f"{tf32:.2f} and in FP32 {fp32:.2f}"
    )


# ---- 21: DLRM's all-to-all over the batch ----


def _exchange_cells(quick: bool) -> list[Cell]:
    return [
        _cell(
            *("iteration", quick),
            **{"model": "dlrm", "network": network, "iterations": 2 if quick else 4},
            **{"batch": batch, "traffic_ratio": _RATIO_AT_512 * batch / _BATCHES[-1]},
            backends=["topoopt"],
        )
        for batch in (_BATCHES[-1:] if quick else _BATCHES)
        for network in NETWORKS
    ]


def _figure_21(results: Results, quick: bool) -> Made:
    csv = [
        {**row, "traffic_ratio": p["traffic_ratio"], "batch": p["batch"]}
        for (p, _), row in zip(results, _rows(results), strict=True)
    ]
    times = {(row["batch"], row["network"]): row["iteration_s"] for row in csv}
    batches = sorted({row["batch"] for row in csv})
    ratios = {row["batch"]: row["traffic_ratio"] for row in csv}

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        names = [f"{batch}\n({ratios[batch]:.0%})" for batch in batches]
        values = {name: [times[batch, name] for batch in batches] for name in NETWORKS}
        plots.bars(axes, names, values, "iteration time (s)")
        axes.set_xlabel("samples on a host (bytes of all-to-all over bytes of AllReduce)")
        axes.legend(loc="upper left")

    computing = {p["batch"]: row["compute_s"] for p, row in results}
    quantities = [
        Quantity(
            f"iteration time, {network} / TopoOpt, batch {batch}, {ratios[batch]:.0%} all-to-all",
            times[batch, network] / times[batch, "TopoOpt"],
            1.6 if (batch, network) == (512, "Switch 25") else None,
            "dlrm",
            "topoopt",
            reason=f"an iteration on TopoOpt computes {computing[batch]:.2f} of "
            f"{times[batch, 'TopoOpt']:.2f} s",
        )
        for batch in batches
        for network in NETWORKS[1:]
    ]
    return Made(csv, draw, [*quantities, *_apart(csv, "DLRM over the batch")])


def _figure(name: str, title: str, about: str, cells: Any, make: Any) -> Figure:
    return Figure(
        *(name, title),
        about=f"{about} (section 6)",
        cells=cells,
        make=make,
        full="12 hosts, d = 4",
        quick="4 hosts, d = 3",
        obstacle=obstacle,
    )


FIGURES = (
    _figure(
        *("18", "the testbed's hosts and the circuits between their ports"),
        *(f"wired by the emulated patch panel for VGG, on {_EMULATED}", _wiring_cells, _figure_18),
    ),
    _figure(
        *("19", "training throughput on the testbed"),
        *(f"of five models on three networks, on {_EMULATED}", _throughput_cells, _figure_19),
    ),
    _figure(
        *("20", "time to accuracy on the testbed"),
        *(f"of a VGG on digits, on {_EMULATED}", _accuracy_cells, _figure_20),
    ),
    _figure(
        *("21", "iteration time of DLRM over its all-to-all traffic, on the testbed"),
        *(f"over the batch, on {_EMULATED}", _exchange_cells, _figure_21),
    ),
)
