"""The data of a run for experiment trackers (Weights & Biases, TensorBoard)."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.rank_work import hidden_part
from torch_topoopt.report.bounds import mean_bus_gbps
from torch_topoopt.report.results import find_accuracy
from torch_topoopt.report.run_folder import is_number, read_run

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.plan import LinkTraffic, Plan, SearchSample
    from torch_topoopt.report.run_folder import Run

_DOTS = 100


@dataclass(frozen=True)
class Experiment:
    """A finished run. `config` is flat; `series` are (time_s, values) in order of time; `links`
    have the plan's and the measured bytes of an iteration."""

    name: str
    config: dict[str, Any]
    series: list[tuple[float, dict[str, float]]]
    search: tuple[SearchSample, ...]
    summary: dict[str, float]
    links: list[dict[str, Any]]
    heatmap: bytes  # PNG
    plan_path: Path


def read_experiment(folder: Path, plan: Plan, links: list[LinkTraffic]) -> Experiment:
    """Reads a run folder. Raises DocumentError."""
    run = read_run(folder)
    return Experiment(
        name=folder.name,
        config=_config(plan),
        series=_series(run),
        search=plan.search,
        summary=_summary(run, links),
        links=_links(plan, links),
        heatmap=_heatmap(plan, links),
        plan_path=folder / "plan.json",
    )


def _config(plan: Plan) -> dict[str, Any]:
    """The configuration and the job; the network and the routes are in the plan file."""
    network = plan.network
    return {
        "model": plan.model,
        "batch_size": plan.batch_size,
        "micro_batches": plan.micro_batches,
        "strategy_space": plan.strategy_space,
        "mode": plan.mode,
        "routing": plan.routing,
        "seed": plan.seed,
        "links": len(network.links),
        "rings": sum(len(group.rings) for group in network.groups),
        "data_parallel": plan.is_data_parallel,
        "plan_digest": plan.digest(),
        **{name: value for name, value in asdict(plan.cluster).items() if _is_plain(value)},
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool))


def _series(run: Run) -> list[tuple[float, dict[str, float]]]:
    """The script's own records, and rank 0's step times and losses."""
    assert run.metrics is not None
    series = [
        (
            record["time_s"],
            {name: v for name, v in record.items() if name != "time_s" and is_number(v)},
        )
        for record in run.metrics.train
    ]
    for step in run.metrics.steps:
        values = {"iteration": float(step.iteration), "step_s": step.step_s}
        if step.loss is not None:
            values["step_loss"] = step.loss
        series.append((step.time_s, values))
    return sorted(series, key=lambda record: record[0])


def _summary(run: Run, links: list[LinkTraffic]) -> dict[str, float]:
    metrics, plan = run.metrics, run.plan
    assert metrics is not None
    found: dict[str, float] = {}
    if plan.predicts_time:
        found["predicted_iteration_s"] = plan.prediction.iteration_s
    if metrics.iterations is not None:
        found["iteration_s"] = metrics.iterations.seconds
        if run.compares_time and not run.why_time_not_compared:
            predicted = plan.prediction.iteration_s
            found["measured_over_predicted"] = metrics.iterations.seconds / predicted
    accuracy = find_accuracy(metrics.train)
    if accuracy is not None:
        found["best_accuracy"], found["accuracy_goal"] = accuracy.best, accuracy.goal
        if accuracy.time_to_s is not None:
            found["time_to_accuracy_s"] = accuracy.time_to_s
    rates = {
        "bus_gbps": mean_bus_gbps(metrics.ranks, metrics.operations),
        "hidden_part": hidden_part(metrics.ranks),
    }
    found |= {name: value for name, value in rates.items() if value is not None}
    found |= {f"stage_s/{name}": seconds for name, seconds in metrics.stages.items()}
    found["sent_bytes"] = float(sum(link.sent_bytes for link in links))
    return found


def _links(plan: Plan, links: list[LinkTraffic]) -> list[dict[str, Any]]:
    predicted = {}
    if plan.predicts_bytes:
        predicted = dict(zip(plan.network.links, plan.prediction.link_bytes, strict=True))
    return [
        {
            "link": f"{of.source}.{of.source_port}-{of.target}.{of.target_port}",
            "sent_bytes": of.sent_bytes,
            "relayed_bytes": of.relayed_bytes,
            "busy_s": of.seconds,
            "iteration_bytes": of.iteration_bytes,
            "predicted_bytes": predicted.get(of.link),
        }
        for of in links
    ]


def _heatmap(plan: Plan, links: list[LinkTraffic]) -> bytes:
    """Bytes between servers on one scale: predicted for an iteration, and measured in one or, if
    none was measured, in the whole run."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    def matrix(sizes: list[tuple[int, int, float]]) -> Any:
        cells = np.zeros((plan.cluster.servers, plan.cluster.servers))
        for source, target, size in sizes:
            cells[source, target] += size / 1e6
        return cells

    maps = {}
    if plan.predicts_bytes:
        pairs = zip(plan.network.links, plan.prediction.link_bytes, strict=True)
        maps["predicted"] = matrix([(of.source, of.target, size) for of, size in pairs])
    if any(of.iteration_bytes is not None for of in links):
        maps["measured"] = matrix([(of.source, of.target, of.iteration_bytes or 0) for of in links])
    elif links:
        maps = {"whole run": matrix([(of.source, of.target, of.sent_bytes) for of in links])}
    figure = Figure(figsize=(1 + 4.5 * max(len(maps), 1), 4.2), layout="constrained", dpi=_DOTS)
    FigureCanvasAgg(figure)
    top = max((cells.max() for cells in maps.values()), default=1.0) or 1.0
    for place, (title, cells) in enumerate(maps.items(), 1):
        axes = figure.add_subplot(1, len(maps), place)
        shown = axes.imshow(cells, vmin=0, vmax=top, cmap="viridis")
        axes.set_title(f"{title}: MB on links")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("to server")
        axes.set_ylabel("from server")
        if place == len(maps):
            figure.colorbar(shown, ax=axes)
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()
