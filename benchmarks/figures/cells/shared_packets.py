"""Jobs of Figure 16 packet by packet, beside the same jobs at flow level."""

from __future__ import annotations

import random
from statistics import mean
from typing import Any

from figures.cells.shared import MIX
from figures.cells.workloads import PER_SERVER, cluster_of, graph_of
from torch_topoopt.shared_networks.concurrent_jobs import PlacedJob, run_concurrent
from torch_topoopt.shared_networks.job_kinds import JobKinds, SwitchedNetwork
from torch_topoopt.shared_networks.job_mix import jobs_of
from torch_topoopt.shared_networks.jobs_file import (
    JobMix,
    JobPlanning,
    ModelShare,
    SharedCluster,
    SharedNetwork,
)
from torch_topoopt.sim import plan_program, run_program

_LEVELS: dict[str, dict[str, Any]] = {
    "flow": {},
    "packet": {"level": "packet", "transport": "dctcp"},
}


# parameters: the cluster, its jobs, and how they are planned
def both_levels(
    *, servers: int, degree: int, gbps: float, per_job: int, jobs: int, evaluations: int, seed: int
) -> Any:
    """The mean of the jobs' mean iterations at both levels, on TopoOpt and on the fat-tree of equal
    cost: servers by lot, a path for each flow, DCTCP, without the first iteration."""
    tree = SharedNetwork("fat-tree")
    shares = tuple(ModelShare(model, share) for model, share in MIX.items())
    document = SharedCluster(
        SharedCluster.VERSION,
        cluster_of(servers, degree, gbps),
        (tree,),
        mix=JobMix(shares, jobs, per_job),
        planning=JobPlanning(evaluations=evaluations),
        seed=seed,
    )
    kinds = JobKinds(document, lambda model, count: graph_of(model, count // PER_SERVER))
    network = SwitchedNetwork(document, tree)
    rng = random.Random(seed)
    free = rng.sample(range(servers), jobs * per_job)
    placed, start_s, models = [], [], []
    for number, job in enumerate(jobs_of(document, lambda model, count: 0.0)):
        found = kinds.on(network, (job.model, per_job))
        own = free[number * per_job : (number + 1) * per_job]
        placed.append(PlacedJob.on(network.routes, found.tasks, own, seed=number))
        start_s.append(found.alone_s * rng.random())
        models.append(job.model)
    rows: dict[str, dict[str, float]] = {}
    for level, options in _LEVELS.items():
        times, _ = run_concurrent(network.routes, placed, start_s, 2, **options)
        shards = {
            model: _shard_s(kinds, (model, per_job), options) for model in dict.fromkeys(models)
        }
        rows[level] = {
            "Fat-tree, Table 2": mean(float(of_job[1:].mean()) for of_job in times),
            "TopoOpt": mean(shards[model] for model in models),
        }
    return {"mean_s": rows}


def _shard_s(kinds: JobKinds, kind: tuple[str, int], options: dict[str, Any]) -> float:
    """An iteration of a job on its shard."""
    program = plan_program(graph_of(*kind), kinds.plan(kind))
    return run_program(program, **options).completion_s
