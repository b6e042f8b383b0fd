"""One iteration of data parallelism: on the networks of Figure 11 for its reasons, over GPUs for
Figure 3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from figures.cells.workloads import PER_SERVER, cluster_of, graph_of, network_of
from torch_topoopt.architectures import fat_tree, ideal_switch, topoopt
from torch_topoopt.comparison.cost import capital_cost, equal_cost_gbps
from torch_topoopt.comparison.estimate import predict_on
from torch_topoopt.search.strategies import everywhere, whole_operators
from torch_topoopt.search.traffic import demand

_TABLES_APART = ("dlrm", "ncf")  # their tables are too large for copies everywhere


def on_networks(*, model: str, servers: int, degree: int, gbps: float, seed: int) -> Any:
    """Seconds of an iteration on TopoOpt in mode paper, the ideal switch and both fat-trees."""
    graph = graph_of(model, servers)
    cluster = cluster_of(servers, degree, gbps)
    strategy = everywhere(graph, servers)
    network = network_of(cluster, demand(graph, strategy, servers), "paper", seed)
    own = topoopt.build(cluster, network=network)
    cost = capital_cost(own, cluster)
    assert cost is not None
    rate = min(equal_cost_gbps(cluster, cost.total), degree * gbps)
    built = {
        "TopoOpt": own,
        "Ideal Switch": ideal_switch.build(cluster),
        "Fat-tree, Table 2": fat_tree.build(cluster, server_gbps=rate),
        "Fat-tree, d B' = B": fat_tree.build(cluster, server_gbps=gbps),
    }
    return {
        name: predict_on(topology, graph, cluster, strategy).iteration_s
        for name, topology in built.items()
    }


def network_overhead(*, model: str, gpus: int, gbps: float, seed: int) -> Any:
    """The part of an iteration on a full-bisection fat-tree in which no accelerator computes, with
    `gbps` to each server. Embedding tables are whole, on servers in turn."""
    servers = gpus // PER_SERVER
    graph = graph_of(model, servers)
    cluster = replace(cluster_of(servers, 1, gbps), memory_limited=False)
    tables = [i for i, o in enumerate(graph.operators) if o.kind.startswith("Embedding")]
    if tables and model in _TABLES_APART:
        strategy = whole_operators(graph, cluster, tables)
    else:
        strategy = everywhere(graph, servers)
    tree = fat_tree.build(cluster, server_gbps=gbps)
    found = predict_on(tree, graph, cluster, strategy)
    return {"overhead": 1 - found.compute_s / found.iteration_s, "iteration_s": found.iteration_s}
