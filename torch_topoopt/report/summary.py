"""The figures of a report as plain data, for `torch_topoopt.report.summary`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.plan.rank_work import hidden_part, slowest_of
from torch_topoopt.plan.result_json import plain, within
from torch_topoopt.report.bounds import bus_gbps, mean_bus_gbps
from torch_topoopt.report.results import (
    compare_traffic,
    find_accuracy,
    numbered_rings,
    reach,
)
from torch_topoopt.report.run_folder import STAGES

if TYPE_CHECKING:
    from torch_topoopt.plan.rank_work import OperationTimes, RankWork, Slowest
    from torch_topoopt.report.run_folder import Run


def divide(value: float | None, by: float | None) -> float | None:
    """value / by, or None if either is unknown or `by` is 0."""
    return None if value is None or not by else value / by


def _prediction(run: Run) -> dict[str, Any]:
    prediction = run.plan.prediction
    if not run.plan.predicts_time:
        names = ("iteration_s", "compute_s", "single_ring_s", "ideal_switch_s")
        derived = ("speedup_over_single_ring", "relative_to_ideal_switch")
        return dict.fromkeys((*names, *derived))
    return {
        "iteration_s": prediction.iteration_s,
        "compute_s": prediction.compute_s,
        "single_ring_s": prediction.single_ring_s,
        "ideal_switch_s": prediction.ideal_switch_s,
        "speedup_over_single_ring": divide(prediction.single_ring_s, prediction.iteration_s),
        "relative_to_ideal_switch": divide(prediction.iteration_s, prediction.ideal_switch_s),
    }


def _iterations(run: Run) -> dict[str, Any] | None:
    iterations = run.metrics.iterations if run.metrics else None
    if iterations is None:
        return None
    predicted_s = run.plan.prediction.iteration_s if run.compares_time else 0.0
    return {
        "count": iterations.count,
        "measured_s": iterations.seconds,
        "difference": None
        if run.why_time_not_compared
        else divide(iterations.seconds - predicted_s, predicted_s),
        "not_compared": run.why_time_not_compared,
    }


def _training(run: Run) -> dict[str, Any] | None:
    accuracy = find_accuracy(run.metrics.train) if run.metrics else None
    if accuracy is None:
        return None
    return {
        "accuracy_key": accuracy.key,
        "final_accuracy": accuracy.final,
        "best_accuracy": accuracy.best,
        "goal_accuracy": accuracy.goal,
        "goal_is_target": accuracy.goal_is_target,
        "time_to_goal_s": accuracy.time_to_s,
    }


def _traffic(run: Run) -> dict[str, Any]:
    traffic = compare_traffic(run)
    links = []
    measured = run.metrics.links if run.metrics else {}
    for i, link in enumerate(run.plan.network.links):
        seen = measured.get(link)
        links.append(
            {
                "source": link.source,
                "source_port": link.source_port,
                "target": link.target,
                "target_port": link.target_port,
                "predicted_bytes_per_iteration": run.plan.prediction.link_bytes[i]
                if run.plan.predicts_bytes
                else None,
                "measured_bytes": seen.sent_bytes if seen else None,
                "measured_relayed_bytes": seen.relayed_bytes if seen else None,
                "measured_over_predicted": divide(traffic.measured[i], traffic.predicted[i])
                if run.compares_bytes
                else None,
            }
        )
    return {"basis": traffic.basis, "steps": traffic.steps, "links": links}


@dataclass(frozen=True)
class OperationFigures:
    """A collective of an iteration, with its rate."""

    JSON_FIELDS: ClassVar = (
        *within("times", "name", "ranks", "size_bytes", "per_iteration", "seconds"), "bus_gbps"
    )  # fmt: skip

    times: OperationTimes

    def bus_gbps(self) -> float | None:
        return bus_gbps(self.times)


@dataclass(frozen=True)
class WorkFigures:
    """An iteration of each rank, and its collectives; rates in Gb/s."""

    JSON_FIELDS: ClassVar = (
        "ranks", "slowest_rank=slowest.rank", "operations=rates", "bus_gbps", "hidden_part"
    )  # fmt: skip

    ranks: list[RankWork]
    operations: list[OperationTimes]

    def slowest(self) -> Slowest | None:
        return slowest_of(self.ranks)

    def rates(self) -> list[OperationFigures]:
        return [OperationFigures(one) for one in self.operations]

    def bus_gbps(self) -> float | None:
        return mean_bus_gbps(self.ranks, self.operations)

    def hidden_part(self) -> float | None:
        return hidden_part(self.ranks)


def summarise(run: Run) -> dict[str, Any]:
    """See `torch_topoopt.report.summary`."""
    plan, metrics = run.plan, run.metrics
    stages = metrics.stages if metrics else {}
    distances = reach(plan.network)
    return {
        "model": plan.model,
        "batch_size": plan.batch_size,
        "servers": plan.cluster.servers,
        "degree": plan.cluster.degree,
        "link_gbps": plan.cluster.link_gbps,
        "seed": plan.seed,
        "strategy_space": plan.strategy_space,
        "plan_digest": plan.digest(),
        "exit_code": metrics.exit_code if metrics else None,
        "stages_s": {name: stages.get(name) for name in STAGES},
        "restarts": [asdict(restart) for restart in metrics.restarts] if metrics else [],
        "growths": [asdict(growth) for growth in metrics.growths] if metrics else [],
        "prediction": _prediction(run),
        "rounds": [
            {
                "strategy_s": entry.strategy_s,
                "network_s": entry.network_s,
                "single_ring_s": entry.single_ring_s,
                "ideal_switch_s": entry.ideal_switch_s,
                "speedup_over_single_ring": divide(entry.single_ring_s, entry.network_s),
                "accepted": entry.accepted,
            }
            for entry in plan.rounds
        ],
        "rings": [
            {"group": ring.group, "stride": ring.stride, "share": ring.ring.share}
            for ring in numbered_rings(plan.network)
        ],
        "mean_hops": distances.mean_hops,
        "relayed_pairs": distances.relayed_pairs,
        "traffic": _traffic(run),
        "iterations": _iterations(run),
        "work": plain(WorkFigures(metrics.ranks, metrics.operations)) if metrics else None,
        "training": _training(run),
        "notes": list(run.notes),
    }
