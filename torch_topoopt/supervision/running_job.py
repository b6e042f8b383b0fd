"""The state of a running job, from its ranks, its run folder and its plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import Plan
from torch_topoopt.plan.rank_work import find_slowest
from torch_topoopt.supervision.link_groups import LinkGroup, LinkNow, group_links
from torch_topoopt.supervision.rank_paces import read_pace
from torch_topoopt.supervision.statuses import read_statuses
from torch_topoopt.supervision.training_log import TrainingLog

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.plan import Link
    from torch_topoopt.plan.rank_work import Slowest
    from torch_topoopt.supervision.job_files import JobFolder
    from torch_topoopt.supervision.statuses import Status


class RunningJob:
    """The state of a job at the last read(); `ranks` are the running ones."""

    JSON_FIELDS: ClassVar[tuple[str, ...]] = (
        "run_dir", "world_size", "iteration", "step_s", "predicted_s", "loss", "slowest",
        "ranks=statuses", "links",
    )  # fmt: skip

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.ranks: dict[int, Status] = {}
        self.own_s: dict[int, float] = {}  # own work of a step, by rank, if known
        self.plan: Plan | None = None
        self.planned_gbps: dict[Link, float] = {}
        self.iterations_per_s: float | None = None
        self.training = TrainingLog(folder.path / "metrics.jsonl")
        self._first: tuple[float, int] | None = None  # time and iteration
        self._plan_version: tuple[int, int] | None = None

    def read(self) -> None:
        """Reads the files again. Raises DocumentError for an invalid status, plan or wiring."""
        self._read_plan()
        self.training.read()
        self.ranks = {r: s for r, s in read_statuses(self.folder).items() if s.alive}
        paces = [read_pace(self.folder, rank) for rank in self.ranks]
        self.own_s = {p.rank: p.own_s for p in paces if p is not None and p.own_s is not None}
        if not self.ranks:
            return
        now = (max(s.time_ns for s in self.ranks.values()) / 1e9, self.iteration)
        if self._first is None or now[1] < self._first[1]:  # the job has restarted
            self._first = now
        elif now[0] > self._first[0]:
            self.iterations_per_s = (now[1] - self._first[1]) / (now[0] - self._first[0])

    def _read_plan(self) -> None:
        """Reads plan and wiring once they exist, and again after a restart."""
        plan_path, wiring_path = self.folder.path / "plan.json", self.folder.path / "wiring.json"
        try:
            version = (plan_path.stat().st_mtime_ns, wiring_path.stat().st_mtime_ns)
        except FileNotFoundError:
            return
        if version == self._plan_version:
            return
        plan = Plan.load(plan_path)
        self.planned_gbps = Wiring.load(wiring_path).planned_rates(plan)
        self.plan, self._plan_version = plan, version

    @property
    def iteration(self) -> int:
        """The iteration that all ranks have reached."""
        return min((status.iteration for status in self.ranks.values()), default=0)

    @property
    def world_size(self) -> int:
        return max((status.world_size for status in self.ranks.values()), default=0)

    @property
    def servers(self) -> int:
        if self.plan is not None:
            return self.plan.cluster.servers
        return max((status.server for status in self.ranks.values()), default=-1) + 1

    @property
    def links(self) -> list[LinkNow]:
        """The links between servers, as reported by their senders."""
        return [
            LinkNow(
                *(rate, rank, self.planned_gbps.get(rate.link)),
                self.training.paths.get(rate.link),
            )
            for rank, status in self.ranks.items()
            for rate in status.links
            if rate.link.source_port >= 0
        ]

    @property
    def step_s(self) -> float | None:
        """Seconds of a recent iteration: from rank 0's pace, else from the number per second."""
        if self.training.step_s:
            return self.training.step_s[-1].value
        return 1 / self.iterations_per_s if self.iterations_per_s else None

    @property
    def slowest(self) -> Slowest | None:
        """The rank that the others wait for; None if there is none, or it is not known."""
        return find_slowest(self.own_s) if self.own_s.keys() == self.ranks.keys() else None

    @property
    def predicted_s(self) -> float | None:
        """The plan's predicted time of an iteration; None without a prediction for this script."""
        if self.plan is None or not self.plan.predicts_time or not self.training.of_script:
            return None
        return self.plan.prediction.iteration_s

    def run_dir(self) -> Path:
        return self.folder.path

    def loss(self) -> float | None:
        return self.training.losses[-1].value if self.training.losses else None

    def statuses(self) -> list[Status]:
        return [replace(s, own_s=self.own_s.get(r)) for r, s in self.ranks.items()]


class LiveJob(RunningJob):
    """A running job with grouped links and the curves of step time and loss."""

    JSON_FIELDS: ClassVar = (
        *RunningJob.JSON_FIELDS, "model", "servers", "stage", "step_curve", "loss_curve", "groups",
        "failures",
    )  # fmt: skip

    def model(self) -> str | None:
        return None if self.plan is None else self.plan.model

    def stage(self) -> str:
        return self.training.stage

    def step_curve(self) -> list[tuple[int, float]]:
        return [(point.iteration, point.value) for point in self.training.step_s]

    def loss_curve(self) -> list[tuple[int, float]]:
        return [(point.iteration, point.value) for point in self.training.losses]

    def groups(self) -> list[LinkGroup]:
        return group_links(self.links, self.servers)

    def failures(self) -> list[RankFailed]:
        return [RankFailed(r, s.failure) for r, s in self.ranks.items() if s.failure]


@dataclass(frozen=True)
class RankFailed:
    """A rank that has failed, and its error."""

    rank: int
    message: str
