"""The slowdown of current jobs by each other on a network of switches.

Jobs without common links, direct or through other jobs, are simulated apart; a job alone repeats
the same iteration. The others run together, each from a random moment of its iteration, until every
one has finished the requested rounds.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from torch_topoopt.shared_networks.concurrent_jobs import PlacedJob, run_concurrent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.shared_networks.job_kinds import JobKinds, Kind, SwitchedNetwork
    from torch_topoopt.shared_networks.jobs_file import SharedCluster


class Contention:
    """The times of iterations on `network`, of jobs that have been placed there."""

    def __init__(
        self,
        document: SharedCluster,
        network: SwitchedNetwork,
        kinds: JobKinds,
        keep_going: Callable[[float, int], bool] | None = None,
    ) -> None:
        self._document = document
        self._network = network
        self._kinds = kinds
        self._keep_going = keep_going
        self._jobs: dict[int, PlacedJob] = {}
        self._links: dict[int, frozenset[int]] = {}
        self._alone_s: dict[int, float] = {}
        self._known: dict[frozenset[int], dict[int, NDArray[np.float64]]] = {}

    def place(self, number: int, kind: Kind, servers: Sequence[int]) -> None:
        """Puts job `number` on `servers`, permanently."""
        found = self._kinds.on(self._network, kind)
        document = self._document
        seed = random.Random(f"paths of job {number}, seed {document.seed}").getrandbits(62)
        job = PlacedJob.on(
            self._network.routes, found.tasks, servers, ecmp=document.ecmp, seed=seed
        )
        self._jobs[number] = job
        self._links[number] = job.links
        self._alone_s[number] = found.alone_s

    def times(self, numbers: Collection[int]) -> Mapping[int, NDArray[np.float64]]:
        """Seconds of iterations of each of these jobs while exactly these run."""
        found: dict[int, NDArray[np.float64]] = {}
        for group in self._groups(numbers):
            if group not in self._known:
                self._known[group] = self._simulated(sorted(group))
            found.update(self._known[group])
        return found

    def _groups(self, numbers: Collection[int]) -> list[frozenset[int]]:
        """The jobs in groups without common links."""
        groups: list[tuple[set[int], set[int]]] = []
        for number in sorted(numbers):
            members, links = {number}, set(self._links[number])
            apart = []
            for other in groups:
                if links.isdisjoint(other[1]):
                    apart.append(other)
                else:
                    members |= other[0]
                    links |= other[1]
            groups = [*apart, (members, links)]
        return [frozenset(members) for members, _ in groups]

    def _simulated(self, numbers: list[int]) -> dict[int, NDArray[np.float64]]:
        jobs = [self._jobs[number] for number in numbers]
        skipped, rounds, start_s = 0, 1, [0.0]
        if len(jobs) > 1:
            document = self._document
            rng = random.Random(f"phases of jobs {numbers}, seed {document.seed}")
            skipped, rounds = document.warm_up, document.warm_up + document.samples
            start_s = [self._alone_s[number] * rng.random() for number in numbers]
        times, _ = run_concurrent(
            self._network.routes, jobs, start_s, rounds, keep_going=self._keep_going
        )
        return {n: of_job[skipped:] for n, of_job in zip(numbers, times, strict=True)}
