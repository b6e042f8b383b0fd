"""Circuits that move during an iteration, over the latency of moving them (Figure 17)."""

from __future__ import annotations

from typing import Any

from figures.cells.iterations import options_of
from figures.cells.workloads import cluster_of, graph_of
from torch_topoopt.architectures import ocs_reconfig
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.planner.alternation import plan

_PACKETS = {"transport": "dctcp"}


# parameters: the job, the cluster, the search, and the circuits
def latency_sweep(
    *,
    model: str,
    servers: int,
    degree: int,
    gbps: float,
    evaluations: int,
    window: str,
    delays_s: list[float],
    seed: int,
    level: str = "flow",
) -> Any:
    """Seconds of an iteration of TopoOpt's plan, and on OCS-reconfig at each delay, with and
    without forwarding. `window`: between two looks at the demand, "50 ms" (section 5.1), or four
    times the delay, as the artifact has it. All run the plan's strategy, at `level`; TopoOpt's time
    is that of the flow level."""
    graph = graph_of(model, servers)
    cluster = cluster_of(servers, degree, gbps)
    planned = plan(graph, cluster, options_of(evaluations, seed))
    options = {"level": level, **_PACKETS} if level == "packet" else {}
    found = []
    for delay_s in delays_s:
        window_s = 0.05 if window == "50 ms" else 4 * delay_s
        for forwarding in (True, False):
            topology = ocs_reconfig.build(
                cluster, seed=seed, window_s=window_s, delay_s=delay_s, forwarding=forwarding
            )
            estimate = predict_architecture(
                *(topology, graph, cluster, planned.strategy),
                micro_batches=planned.micro_batches,
                **options,
            )
            found.append([delay_s, forwarding, estimate.iteration_s, estimate.bandwidth_tax])
    return {
        "topoopt_s": planned.prediction.iteration_s,
        "compute_s": planned.prediction.compute_s,
        "ocs": found,
    }
