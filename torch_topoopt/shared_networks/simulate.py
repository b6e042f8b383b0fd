"""The jobs of a document on each of its architectures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.shared_networks.contention import Contention
from torch_topoopt.shared_networks.job_kinds import JobKinds, SwitchedNetwork
from torch_topoopt.shared_networks.job_mix import jobs_of
from torch_topoopt.shared_networks.jobs_file import SharedNetwork
from torch_topoopt.shared_networks.outcome import (
    JobOutcome,
    NetworkOutcome,
    WiringCost,
    usage,
)
from torch_topoopt.shared_networks.shards import ShardTimes, shard_schedule
from torch_topoopt.shared_networks.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.shared_networks.jobs_file import ClusterJob, SharedCluster


def simulate_jobs(
    document: SharedCluster,
    graph_of: Callable[[str, int], OpGraph],
    *,
    kinds: JobKinds | None = None,
    on_progress: Callable[[float | None, str], None] = lambda fraction, text: None,
) -> tuple[NetworkOutcome, ...]:
    """One outcome per architecture, in the order of the document.

    `graph_of(model, accelerators)` gives the OpGraph of a model on so many accelerators together.
    `kinds` are those of a document that differs in its jobs, their placement or the seed alone; its
    plans are reused. The same arguments give the same outcomes. `on_progress` is called now and
    then, and its exception ends the simulation. Raises DocumentError for an invalid document, and
    ValueError for a model that does not fit, or a fat-tree that costs more than TopoOpt at any
    rate.
    """
    document.validate()
    switched = {
        network: SwitchedNetwork(document, network)
        for network in document.architectures
        if network.name != "topoopt"
    }
    kinds = kinds or JobKinds(document, graph_of, lambda text: on_progress(None, text))
    jobs = jobs_of(document, lambda model, servers: _ideal_s(document, kinds, model, servers))
    return tuple(
        _on_switches(document, switched[network], kinds, jobs, on_progress)
        if network in switched
        else _on_topoopt(document, kinds, jobs)
        for network in document.architectures
    )


def _ideal_s(document: SharedCluster, kinds: JobKinds, model: str, servers: int) -> float:
    network = SwitchedNetwork(document, SharedNetwork("ideal-switch"))
    return kinds.on(network, (model, servers)).alone_s


def _on_switches(
    document: SharedCluster,
    switched: SwitchedNetwork,
    kinds: JobKinds,
    jobs: Sequence[ClusterJob],
    on_progress: Callable[[float | None, str], None],
) -> NetworkOutcome:
    def keep_going(now_s: float, finished: int) -> bool:
        on_progress(None, f"{switched.label}: {finished} tasks simulated")
        return True

    contention = Contention(document, switched, kinds, keep_going)
    timeline = Timeline(jobs, contention, switched.switch_of, document.placement, document.seed)
    done = timeline.run(lambda part, text: on_progress(part, f"{switched.label}: {text}"))
    held, fragmentation = usage(done, document.cluster.servers)
    return NetworkOutcome(switched.label, switched.server_gbps, done, held, fragmentation)


def _on_topoopt(
    document: SharedCluster, kinds: JobKinds, jobs: Sequence[ClusterJob]
) -> NetworkOutcome:
    cluster, panels = document.cluster, document.patch_panels
    seconds = [kinds.plan((job.model, job.servers)).prediction.iteration_s for job in jobs]
    times = shard_schedule(jobs, seconds, cluster.servers, panels)
    other = replace(panels, look_ahead=not panels.look_ahead)
    other_times = shard_schedule(jobs, seconds, cluster.servers, other)
    done = _outcomes(jobs, seconds, times)
    other_done = _outcomes(jobs, seconds, other_times)
    held, fragmentation = usage(done, cluster.servers)
    network = NetworkOutcome(
        "topoopt", cluster.degree * cluster.link_gbps, done, held, fragmentation
    )
    with_other = replace(network, jobs=other_done)
    ends = [time.end_s for time in other_times if time.end_s < math.inf]
    cost = WiringCost(
        panels.look_ahead,
        _reconfiguration(times),
        _reconfiguration(other_times),
        with_other.waiting_s,
        max(ends, default=0.0),
    )
    return replace(network, shards=cost)


def _outcomes(
    jobs: Sequence[ClusterJob], seconds: Sequence[float], times: Sequence[ShardTimes]
) -> tuple[JobOutcome, ...]:
    return tuple(
        JobOutcome(
            job.model,
            job.servers,
            job.arrival_s,
            time.start_s,
            time.end_s,
            np.full(int(time.start_s < math.inf), iteration_s),
            np.full(int(time.start_s < math.inf), float(job.iterations or 1)),
        )
        for job, iteration_s, time in zip(jobs, seconds, times, strict=True)
    )


def _reconfiguration(times: Sequence[ShardTimes]) -> float:
    """On average over the jobs that start."""
    started = [time.reconfiguration_s for time in times if time.start_s < math.inf]
    return sum(started) / len(started) if started else 0.0
