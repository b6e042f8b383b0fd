"""An iteration as the simulations set it that the paper released, as far as they are described.

Other sizes of BERT and VGG, no memory limit, splits of samples only, every port for the rings of
AllReduce, one shortest path by lot for each pair of servers. Strategies: data parallelism; with
embedding tables, those whole, on servers by lot, as a random search leaves them. Where branches of
the model may be apart, they are, too.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from figures.cells.released_costs import released_costs
from figures.cells.workloads import cluster_of, graph_of, network_of
from torch_topoopt.architectures import fat_tree, ideal_switch, topoopt
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.plan import Placement
from torch_topoopt.profile.cost_table import with_costs
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import expert_strategies
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy

_PACKETS = {"transport": "dctcp", "ring_steps": "barrier"}  # as the released simulator


# parameters: the model, its cluster, and how it is run
def iteration(
    *,
    model: str,
    servers: int,
    degree: int,
    gbps: float,
    strategy: str,
    level: str,
    seed: int,
    costs: str = "estimated",
) -> Any:
    """Seconds of an iteration on TopoOpt's network, the ideal switch and a fat-tree of `gbps` to
    every server (d B' = B). `strategy`: "data parallelism", "tables by lot" or "branches apart".
    `costs`: computing times, "estimated" or "released"."""
    graph = graph_of(model, servers)
    if costs == "released":
        graph = with_costs(graph, released_costs(graph))
    cluster = replace(cluster_of(servers, degree, gbps), memory_limited=False)
    placed = _STRATEGIES[strategy](graph, cluster, seed)
    asked = demand(graph, placed, servers)
    # the artifact's strides are for groups whose size divides the number of servers
    mode = "paper" if strategy == "branches apart" else "released"
    networks = {
        "TopoOpt": topoopt.build(cluster, network=network_of(cluster, asked, mode, seed)),
        "Ideal Switch": ideal_switch.build(cluster),
        "Fat-tree, d B' = B": fat_tree.build(cluster, server_gbps=gbps),
    }
    options = _PACKETS if level == "packet" else {}
    found = {
        name: predict_architecture(
            network, graph, cluster, placed, level=level, seed=seed, **options
        )
        for name, network in networks.items()
    }
    return {
        "iteration_s": {name: estimate.iteration_s for name, estimate in found.items()},
        "compute_s": found["TopoOpt"].compute_s,
        "bandwidth_tax": found["TopoOpt"].bandwidth_tax,
    }


def _everywhere(graph: OpGraph, cluster: Cluster, seed: int) -> Strategy:
    return data_parallel(graph, cluster.servers)


def tables_by_lot(graph: OpGraph, cluster: Cluster, seed: int) -> Strategy:
    lots = random.Random(seed)
    return tuple(
        Placement(placement.operator, (lots.randrange(cluster.servers),))
        if operator.kind.startswith("Embedding")
        else placement
        for operator, placement in zip(
            graph.operators, data_parallel(graph, cluster.servers), strict=True
        )
    )


def _branches_apart(graph: OpGraph, cluster: Cluster, seed: int) -> Strategy:
    problem = SearchProblem(graph, cluster, None, (data_parallel(graph, cluster.servers),))
    return next(s for name, s in expert_strategies(problem).items() if " branches on " in name)


_STRATEGIES = {
    "data parallelism": _everywhere,
    "tables by lot": tables_by_lot,
    "branches apart": _branches_apart,
}
