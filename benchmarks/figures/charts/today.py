"""Beyond the paper: GPT with three dimensions of parallelism, and a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

# Models and their micro-batches: a mixture's experts exchange tokens in every layer, in one batch.
_JOBS = {"gpt:gpt3-13b": 8, "moe:1.3b-128e": 1}
_QUICK_JOBS = {"gpt:gpt2": 8, "moe:gpt2-8e": 1}
_GBPS = 100.0
_BASE = "TopoOpt, best"
_BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
_PRICED, _FEW_PRICED = 4, 2  # strategies on every network, and where there are many servers
# One way: a mixture's experts on groups of 16 or 32 of 128 servers, of 16 of 1024.
_TRANSFERS, _MANY_TRANSFERS = 100_000, 400_000


def _cell(model: str, micro_batches: int, servers: int, priced: int, max_transfers: int) -> Cell:
    return Cell.of(
        "figures.cells.today:on_every_network",
        **{"model": model, "servers": servers, "degree": 4, "gbps": _GBPS},
        limit_s=3600.0,
        micro_batches=micro_batches,
        priced=priced,
        max_transfers=max_transfers,
        seed=0,
    )


def _cells(quick: bool) -> list[Cell]:
    jobs, servers = (_QUICK_JOBS, 8) if quick else (_JOBS, 128)
    return [_cell(*job, servers, _PRICED, _TRANSFERS) for job in jobs.items()]


def _large_cells(quick: bool) -> list[Cell]:
    jobs, servers = (_QUICK_JOBS, 16) if quick else (_JOBS, 1024)
    return [_cell(*job, servers, _FEW_PRICED, _MANY_TRANSFERS) for job in jobs.items()]


def _make(results: Results, quick: bool) -> Made:
    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(results), sharey=True, squeeze=False)[0]
        names = list(dict.fromkeys(name for _, row in results for name in row["iteration_s"]))
        for axes, (p, row) in zip(panels, results, strict=True):
            times = row["iteration_s"]
            ratios = [times.get(name, 0.0) / times[_BASE] for name in names]
            axes.barh(range(len(names)), ratios, color=plots.colour(0))
            for y, (name, ratio) in enumerate(zip(names, ratios, strict=True)):
                text = f"  {ratio:.2f}" if name in times else "  not simulated"
                axes.text(ratio, y, text, va="center", fontsize=7, bbox=_BEHIND_TEXT)
            axes.axvline(1.0, color=plots.colour(1), linewidth=1.0)
            axes.set_yticks(range(len(names)), names)
            axes.set_xlim(0, 1.25 * max(ratios))
            axes.set_xlabel(f"iteration time over {_BASE}")
            axes.set_title(f"{p['model']}, {p['servers']} servers", fontsize=9)
        panels[0].invert_yaxis()

    quantities = [
        Quantity(
            f"{name} / {_BASE}, {p['servers']} servers",
            time_s / row["iteration_s"][_BASE],
            model=p["model"],
            mode=row["strategy"][name],
        )
        for p, row in results
        for name, time_s in row["iteration_s"].items()
        if name != _BASE
    ]
    csv = [
        {
            **{k: p[k] for k in ("model", "servers", "degree", "gbps", "micro_batches")},
            **{"batch_size": row["batch_size"], "parameter_bytes": row["parameter_bytes"]},
            **{"network": name, "iteration_s": time_s},
            "strategy": row["strategy"][name],
        }
        for p, row in results
        for name, time_s in row["iteration_s"].items()
    ]
    return Made(csv, draw, quantities, (max(6.5, 3.4 * len(results) + 1.2), 4.4))


_ABOUT = "what users run today, with pipelines, layers in parts and experts (not in the paper)"
FIGURES = (
    Figure(
        *("today", "GPT and a mixture of experts on every architecture, d = 4, B = 100 Gb/s"),
        about=_ABOUT,
        cells=_cells,
        make=_make,
        full="128 servers",
        quick="8 servers",
    ),
    Figure(
        *("today-large", "GPT and a mixture of experts on many servers, d = 4, B = 100 Gb/s"),
        about=_ABOUT,
        cells=_large_cells,
        make=_make,
        full="1024 servers",
        quick="16 servers",
    ),
)
