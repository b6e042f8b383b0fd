"""A cluster that many jobs share, at several loads (Figure 16)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from figures.cells.workloads import cluster_of, graph_of
from torch_topoopt.plan.result_json import plain
from torch_topoopt.shared_networks.job_kinds import JobKinds
from torch_topoopt.shared_networks.jobs_file import (
    JobMix,
    JobPlanning,
    ModelShare,
    SharedCluster,
    SharedNetwork,
)
from torch_topoopt.shared_networks.simulate import simulate_jobs

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.shared_networks.concurrent_jobs import EcmpChoice
    from torch_topoopt.shared_networks.jobs_file import PlacementRule

# Section 5.6, with List 1's sizes for it
MIX = {"dlrm:paper-5.6": 40.0, "bert:paper-5.6": 30.0, "candle:paper-5.6": 20.0, "vgg": 10.0}


def networks_of(gbps: float) -> dict[str, SharedNetwork]:
    """The networks of the figure, with links of `gbps` in TopoOpt's."""
    return {
        "Ideal Switch": SharedNetwork("ideal-switch"),
        "TopoOpt": SharedNetwork("topoopt"),
        "Fat-tree, Table 2": SharedNetwork("fat-tree"),
        "Fat-tree, d B' = B": SharedNetwork("fat-tree", gbps),
        "Oversub. Fat-tree": SharedNetwork("oversubscribed-fat-tree"),
    }


# parameters: the cluster, its jobs, and how they are placed and planned
def at_loads(
    *,
    servers: int,
    degree: int,
    gbps: float,
    per_job: int,
    jobs: list[int],
    placement: PlacementRule,
    ecmp: EcmpChoice,
    evaluations: int,
    seed: int,
) -> Any:
    """Mean and 99th percentile of iterations with so many `jobs` that never end, on each network.

    `seed` draws the order of the jobs, their servers, paths and phases; plans are those of seed 0.
    """
    networks = networks_of(gbps)
    shares = tuple(ModelShare(model, share) for model, share in MIX.items())
    document = SharedCluster(
        SharedCluster.VERSION,
        cluster_of(servers, degree, gbps),
        tuple(networks.values()),
        mix=JobMix(shares, max(jobs), per_job),
        placement=placement,
        ecmp=ecmp,
        planning=JobPlanning(evaluations=evaluations),
    )
    kinds = JobKinds(document, _graph)
    points = []
    for count in jobs:
        mix = JobMix(shares, count, per_job)
        found = simulate_jobs(replace(document, mix=mix, seed=seed), _graph, kinds=kinds)
        points += [
            {"jobs": count, "network": name, **_row(plain(outcome))}
            for name, outcome in zip(networks, found, strict=True)
        ]
    return {
        "points": points,
        "compute_s": {model: kinds.plan((model, per_job)).prediction.compute_s for model in MIX},
    }


def _row(summary: dict[str, Any]) -> dict[str, Any]:
    names = ("server_gbps", "mean_s", "p99_s", "models", "utilisation", "fragmentation")
    return {name: summary[name] for name in names}


def _graph(model: str, accelerators: int) -> OpGraph:
    return graph_of(model, accelerators // cluster_of(1, 1, 1.0).accelerators_per_server)
