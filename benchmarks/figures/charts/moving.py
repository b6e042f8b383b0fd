"""Figure 17: what the latency of moving circuits costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_MODELS = ("dlrm", "bert")
_WINDOWS = ("50 ms", "4 x delay")
_DELAYS_S = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_NAMES = {True: "OCS-reconfig-FW", False: "OCS-reconfig-noFW"}
_PAPER_BERT = 1.4  # section 5.7: forwarding makes BERT slower by that
_HIDDEN = (
    "an iteration takes {iteration:.3g} ms, {compute:.3g} of them computation, which AllReduce "
    "hides behind with and without forwarding"
)
_ASKED = (
    "without forwarding a pair waits for a circuit of its own: a server has {others} others and "
    "{degree} circuits, so that each of DLRM's two all-to-alls takes at least {windows:.1f} "
    "windows of {window}"
)


def _cells(quick: bool) -> list[Cell]:
    return [
        Cell.of(
            "figures.cells.moving:latency_sweep",
            **{"model": model, "servers": 16 if quick else 128, "degree": 8, "gbps": 100.0},
            **{"evaluations": 100 if quick else 500, "window": window, "seed": 0},
            limit_s=2400,
            delays_s=list(_DELAYS_S[2:] if quick else _DELAYS_S),
        )
        for model in _MODELS
        for window in _WINDOWS
    ] + [
        Cell.of(
            "figures.cells.moving:latency_sweep",
            **{"model": model, "servers": 16 if quick else 128, "degree": 8, "gbps": 100.0},
            **{"evaluations": 100 if quick else 500, "window": _WINDOWS[0], "seed": 0},
            **{"delays_s": [_DELAYS_S[2], _DELAYS_S[-1]], "level": "packet"},
            limit_s=2400,
        )
        for model in _MODELS
    ]


def why_windows(parameters: dict[str, Any], window: str) -> str:
    """Each window gives a server so many circuits, each to one other server."""
    others, degree = parameters["servers"] - 1, parameters["degree"]
    return _ASKED.format(others=others, degree=degree, windows=others / degree, window=window)


def _at(row: dict[str, Any], delay_s: float, forwarding: bool) -> float:
    return next(t for d, fw, t, _ in row["ocs"] if (d, fw) == (delay_s, forwarding))


def _make(results: Results, quick: bool) -> Made:
    found = {(p["model"], p["window"]): row for p, row in results if "level" not in p}
    packets = [(p["model"], row) for p, row in results if "level" in p]

    def draw(canvas: Canvas) -> None:
        for axes, model in zip(canvas.subplots(1, 2), _MODELS, strict=True):
            curves = {}
            for window in _WINDOWS:
                row = found[model, window]
                for forwarding, name in _NAMES.items():
                    curves[f"{name}, window {window}"] = [
                        (delay_s * 1e6, time_s * 1e3)
                        for delay_s, fw, time_s, _ in row["ocs"]
                        if fw == forwarding
                    ]
            delays = [delay_s * 1e6 for delay_s, *_ in row["ocs"]]
            curves["TopoOpt"] = [(delay, row["topoopt_s"] * 1e3) for delay in sorted(set(delays))]
            x_label = "reconfiguration latency (us)"
            plots.lines(axes, curves, x_label, "iteration time (ms)", log="xy")
            axes.set_title(f"{model}, d = 8, B = 100 Gb/s", fontsize=9)
        plots.legend_below(canvas, axes)

    quantities = []
    for (model, window), row in found.items():
        least, most = row["ocs"][0][0], row["ocs"][-1][0]
        for delay_s in (least, most):
            with_it, without = _at(row, delay_s, True), _at(row, delay_s, False)
            stated = _PAPER_BERT if model == "bert" and delay_s == most else None
            hidden = _HIDDEN.format(iteration=with_it * 1e3, compute=row["compute_s"] * 1e3)
            quantities.append(
                Quantity(
                    f"FW / noFW at {_named(delay_s)}, window {window}",
                    *(with_it / without, stated, model, "paper"),
                    reason="" if quick else hidden,
                )
            )
        quantities.append(
            Quantity(
                f"noFW / TopoOpt at {_named(least)}, window {window}",
                _at(row, least, False) / row["topoopt_s"],
                None if quick else 1.0,
                *(model, "paper"),
                reason=why_windows(results[0][0], window),
            )
        )
    for model, row in packets:
        for delay_s, forwarding, time_s, _ in row["ocs"]:
            quantities.append(
                Quantity(
                    f"packet level over flow level, {_NAMES[forwarding]} at {_named(delay_s)}, "
                    f"window {_WINDOWS[0]}",
                    time_s / _at(found[model, _WINDOWS[0]], delay_s, forwarding),
                    *(None, model, "paper"),
                )
            )
    csv = [
        {
            **{"model": model, "level": level, "window": window},
            **{"delay_s": delay_s, "forwarding": fw, "iteration_s": time_s},
            **{"bandwidth_tax": tax, "topoopt_s": row["topoopt_s"]},
        }
        for model, level, window, row in (
            *((model, "flow", window, row) for (model, window), row in found.items()),
            *((model, "packet", _WINDOWS[0], row) for model, row in packets),
        )
        for delay_s, fw, time_s, tax in row["ocs"]
    ]
    return Made(csv, draw, quantities, (8.5, 4.4))


def _named(delay_s: float) -> str:
    return f"{delay_s * 1e6:g} us" if delay_s < 1e-3 else f"{delay_s * 1e3:g} ms"


FIGURES = (
    Figure(
        *("17", "impact of reconfiguration latency"),
        about="OCS-reconfig with and without forwarding beside TopoOpt (section 5.7)",
        cells=_cells,
        make=_make,
        full="128 servers",
        quick="16 servers, three latencies",
    ),
)
