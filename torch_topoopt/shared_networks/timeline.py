"""A network of switches from one arrival or end of a job to the next.

Jobs get servers in the order of arrival, as soon as enough are free; none overtakes another.
Between two events the running jobs are the same. So the iteration time of each is measured once
(`Contention`), and every job advances at that rate.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.shared_networks.outcome import JobOutcome
from torch_topoopt.shared_networks.placement import choose_servers, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from torch_topoopt.shared_networks.contention import Contention
    from torch_topoopt.shared_networks.jobs_file import ClusterJob, PlacementRule


@dataclass
class _Running:
    servers: tuple[int, ...]
    start_s: float
    left: float  # iterations
    spread: float
    times: list[NDArray[np.float64]] = field(default_factory=list)
    weights: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, times: NDArray[np.float64], iterations: float) -> None:
        """So many iterations, with times distributed like these."""
        self.times.append(times)
        self.weights.append(np.full(len(times), iterations / len(times)))


class Timeline:
    """One run of `jobs`, which are in the order of arrival."""

    def __init__(
        self,
        jobs: Sequence[ClusterJob],
        contention: Contention,
        switch_of: Sequence[int],
        placement: PlacementRule,
        seed: int,
    ) -> None:
        self._jobs = jobs
        self._contention = contention
        self._switch_of = switch_of
        self._placement = placement
        self._rng = random.Random(f"placement, seed {seed}")
        self._free = set(range(len(switch_of)))
        self._waiting: deque[int] = deque()
        self._running: dict[int, _Running] = {}
        self._done: dict[int, JobOutcome] = {}
        self._next = 0  # arrival
        self._now_s = 0.0

    def run(
        self, on_progress: Callable[[float, str], None] = lambda fraction, text: None
    ) -> tuple[JobOutcome, ...]:
        """The outcome of every job; those that never start have no iterations."""
        while len(self._done) < len(self._jobs):
            self._arrive()
            self._admit()
            on_progress(
                len(self._done) / len(self._jobs),
                f"{len(self._running)} jobs run, {len(self._waiting)} wait",
            )
            if not self._advance():
                break
        return tuple(
            self._done.get(number) or self._outcome(number) for number in range(len(self._jobs))
        )

    def _arrive(self) -> None:
        while self._next < len(self._jobs) and self._jobs[self._next].arrival_s <= self._now_s:
            self._waiting.append(self._next)
            self._next += 1

    def _admit(self) -> None:
        while self._waiting:
            number = self._waiting[0]
            job = self._jobs[number]
            servers = choose_servers(
                self._placement, self._free, job.servers, self._switch_of, self._rng
            )
            if servers is None:
                return
            self._waiting.popleft()
            self._free -= set(servers)
            self._contention.place(number, (job.model, job.servers), servers)
            left = math.inf if job.iterations is None else float(job.iterations)
            self._running[number] = _Running(
                servers, self._now_s, left, spread(servers, self._switch_of)
            )

    def _advance(self) -> bool:
        """Advances to the next arrival or end; False if there is none."""
        times = self._contention.times(self._running)
        pace_s = {number: float(times[number].mean()) for number in self._running}
        ends = {number: job.left * pace_s[number] for number, job in self._running.items()}
        step_s = min(ends.values(), default=math.inf)
        arrival_s = math.inf
        if self._next < len(self._jobs):
            arrival_s = self._jobs[self._next].arrival_s - self._now_s
        forever = math.isinf(min(step_s, arrival_s))
        for number, job in self._running.items():
            if forever:  # only the steady state counts
                job.times, job.weights = [], []
                job.add(times[number], 1.0)
            else:
                iterations = min(step_s, arrival_s) / pace_s[number]
                job.add(times[number], iterations)
                job.left -= iterations
        if forever:
            return False
        if arrival_s < step_s:
            self._now_s = self._jobs[self._next].arrival_s
            return True
        self._now_s += step_s
        for number in [n for n, end_s in ends.items() if end_s <= step_s]:
            self._free |= set(self._running[number].servers)
            self._done[number] = self._outcome(number, self._now_s)
            del self._running[number]
        return True

    def _outcome(self, number: int, end_s: float = math.inf) -> JobOutcome:
        job = self._jobs[number]
        running = self._running.get(number)
        if running is None:
            nothing = np.zeros(0)
            return JobOutcome(
                job.model, job.servers, job.arrival_s, math.inf, math.inf, nothing, nothing
            )
        return JobOutcome(
            job.model,
            job.servers,
            job.arrival_s,
            running.start_s,
            end_s,
            np.concatenate(running.times),
            np.concatenate(running.weights),
            running.spread,
        )
