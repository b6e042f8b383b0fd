"""The results of a shared cluster's jobs on one architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TAIL = 0.99  # quantile


@dataclass(frozen=True, eq=False)
class JobOutcome:
    """A job that arrived, and its outcome; times are infinite for events that never happen.

    `times_s` are sampled seconds of its iterations, each with `weights`. `spread` is the number of
    switches of its servers over the smallest possible one.
    """

    JSON_FIELDS: ClassVar = (
        "model", "servers", "arrival_s", "start_s?", "end_s?", "waiting_s?", "iteration_s?",
        "spread",
    )  # fmt: skip

    model: str
    servers: int
    arrival_s: float
    start_s: float
    end_s: float
    times_s: NDArray[np.float64]
    weights: NDArray[np.float64]
    spread: float = 1.0

    @property
    def iteration_s(self) -> float:
        """The mean; infinite for a job that never starts."""
        if not len(self.times_s):
            return math.inf
        return float(np.average(self.times_s, weights=self.weights))

    @property
    def waiting_s(self) -> float:
        return self.start_s - self.arrival_s


@dataclass(frozen=True)
class WiringCost:
    """The cost of wiring: seconds that servers wait for their links, and that jobs wait in total,
    on average over the started jobs; `other_*` are with look-ahead if this is without, and vice
    versa. `last_end_s` is the end of the last job."""

    look_ahead: bool
    reconfiguration_s: float
    other_reconfiguration_s: float
    other_waiting_s: float
    other_last_end_s: float


@dataclass(frozen=True)
class MeanAndTail:
    """Mean and 99th percentile of the seconds of iterations; NaN where there are none."""

    JSON_FIELDS: ClassVar = ("mean_s?", "p99_s?")

    mean_s: float
    p99_s: float


@dataclass(frozen=True)
class NetworkOutcome:
    """All jobs on one architecture, in the order of arrival.

    `utilisation` is the fraction of servers with a job, on average from the first arrival to the
    last end (where jobs never end: at the end). `fragmentation` is the spread of the running jobs,
    averaged over servers and time in the same way.
    """

    JSON_FIELDS: ClassVar = (
        "architecture=network", "server_gbps", "iterations.mean_s?", "iterations.p99_s?",
        "models=by_model", "waiting_s", "completion_s", "utilisation", "fragmentation", "shards",
        "jobs",
    )  # fmt: skip

    network: str
    server_gbps: float
    jobs: tuple[JobOutcome, ...]
    utilisation: float
    fragmentation: float
    shards: WiringCost | None = None

    def iterations(self, model: str | None = None) -> MeanAndTail:
        """Of all jobs, or those of a model.

        Every started job has equal weight: the mean is that of the jobs' means, and the iterations
        of each job have the same total weight.
        """
        jobs = [j for j in self.jobs if len(j.times_s) and model in (None, j.model)]
        if not jobs:
            return MeanAndTail(math.nan, math.nan)
        times = np.concatenate([job.times_s for job in jobs])
        weights = np.concatenate([job.weights / job.weights.sum() for job in jobs])
        order = np.argsort(times, kind="stable")
        reached = np.cumsum(weights[order]) / weights.sum()
        place = min(int(np.searchsorted(reached, TAIL)), len(times) - 1)
        tail = float(times[order[place]])
        return MeanAndTail(float(np.mean([job.iteration_s for job in jobs])), tail)

    def by_model(self) -> dict[str, MeanAndTail]:
        return {name: self.iterations(name) for name in self.models}

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted({job.model for job in self.jobs}))

    @property
    def waiting_s(self) -> float:
        """On average over the jobs that start; 0 if none does."""
        return _mean([job.waiting_s for job in self.jobs if job.start_s < math.inf])

    @property
    def completion_s(self) -> float:
        """From arrival to end, on average over the jobs that end; 0 if none does."""
        return _mean([job.end_s - job.arrival_s for job in self.jobs if job.end_s < math.inf])


def usage(jobs: tuple[JobOutcome, ...], servers: int) -> tuple[float, float]:
    """Utilisation and fragmentation, as NetworkOutcome has them."""
    started = [job for job in jobs if job.start_s < math.inf]
    if not started:
        return 0.0, 1.0
    endless = [job for job in started if job.end_s == math.inf]
    if endless:
        held = [(float(job.servers), job.spread) for job in endless]
        span_s = 1.0
    else:
        held = [(job.servers * (job.end_s - job.start_s), job.spread) for job in started]
        span_s = max(job.end_s for job in started) - min(job.arrival_s for job in jobs)
    total = sum(amount for amount, _ in held)
    fragmentation = sum(amount * spread for amount, spread in held) / total
    return total / (servers * span_s), fragmentation


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
