"""The jobs of a document: those that it lists, or those that its mix makes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from torch_topoopt.shared_networks.jobs_file import ClusterJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.shared_networks.jobs_file import JobMix, SharedCluster


def jobs_of(
    document: SharedCluster, ideal_s: Callable[[str, int], float]
) -> tuple[ClusterJob, ...]:
    """In the order of arrival. `ideal_s(model, servers)` is the time of an iteration on an ideal
    switch, by which the rate of Poisson arrivals is set."""
    if document.mix is None:
        return tuple(sorted(document.jobs, key=lambda job: job.arrival_s))
    mix = document.mix
    rng = random.Random(document.seed)
    models = shared_out(mix)
    rng.shuffle(models)
    arrivals = [0.0] * mix.jobs
    if mix.arrivals == "poisson":
        assert mix.load is not None
        assert mix.iterations is not None
        mean_s = sum(ideal_s(m, mix.servers) for m in models) / len(models) * mix.iterations
        rate = mix.load * document.cluster.servers / (mix.servers * mean_s)
        now_s = 0.0
        for i in range(mix.jobs):
            arrivals[i] = now_s
            now_s += rng.expovariate(rate)
    return tuple(
        ClusterJob(model, mix.servers, arrival, mix.iterations)
        for model, arrival in zip(models, arrivals, strict=True)
    )


def shared_out(mix: JobMix) -> list[str]:
    """The models of all jobs, as many of each as its share says: by largest remainders, of equal
    ones the first."""
    total = sum(entry.share for entry in mix.models)
    wanted = [mix.jobs * entry.share / total for entry in mix.models]
    counts = [int(part) for part in wanted]
    by_rest = sorted(range(len(wanted)), key=lambda i: (counts[i] - wanted[i], i))
    for i in by_rest[: mix.jobs - sum(counts)]:
        counts[i] += 1
    return [
        entry.model for entry, count in zip(mix.models, counts, strict=True) for _ in range(count)
    ]
