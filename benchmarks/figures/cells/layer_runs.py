"""Every network with the fastest of a few strategies, as searches that differ by network find them.

Beside data parallelism, the layers stand in k runs of about as many bytes of parameters, the first
on servers 0, k, 2k ..., the next on 1, k + 1 ... (`search.starts.layer_runs`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from figures.cells.as_released import tables_by_lot
from figures.cells.released_costs import released_costs
from figures.cells.workloads import cluster_of, graph_of, network_of
from torch_topoopt.architectures import fat_tree, ideal_switch, topoopt
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.profile.cost_table import with_costs
from torch_topoopt.search.starts.layer_runs import in_runs
from torch_topoopt.search.strategies import data_parallel, whole_operators
from torch_topoopt.search.traffic import demand

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy

RUNS = (1, 2, 4)  # one: data parallelism
_TABLES = ("dlrm", "ncf")  # models whose tables are whole


def iteration(*, model: str, servers: int, degree: int, gbps: float, costs: str, seed: int) -> Any:
    """Seconds of an iteration with each strategy on TopoOpt's network, the ideal switch and a
    fat-tree of `gbps` to every server (d B' = B), at flow level and without a memory limit.

    `costs`: computing times, "estimated" or "released". Tables are by lot, or one on each server.
    """
    graph = graph_of(model, servers)
    if costs == "released":
        graph = with_costs(graph, released_costs(graph))
    cluster = replace(cluster_of(servers, degree, gbps), memory_limited=False)
    times: dict[str, dict[str, float]] = {}
    for name, base in _bases(graph, cluster, seed).items():
        for count in RUNS:
            placed = in_runs(graph, base, servers, count)
            named = f"{name}, {count} runs" if count > 1 else name
            times[named] = _times(graph, cluster, placed, seed)
    return {"iteration_s": times}


def _bases(graph: OpGraph, cluster: Cluster, seed: int) -> dict[str, Strategy]:
    tables = [i for i, o in enumerate(graph.operators) if o.kind.startswith("Embedding")]
    if not tables or graph.model.partition(":")[0] not in _TABLES:
        return {"data parallelism": data_parallel(graph, cluster.servers)}
    return {
        "tables by lot": tables_by_lot(graph, cluster, seed),
        "tables one a server": whole_operators(graph, cluster, tables),
    }


def _times(graph: OpGraph, cluster: Cluster, placed: Strategy, seed: int) -> dict[str, float]:
    asked = demand(graph, placed, cluster.servers)
    network = network_of(cluster, asked, "released", seed)
    networks = {
        "TopoOpt": topoopt.build(cluster, network=network),
        "Ideal Switch": ideal_switch.build(cluster),
        "Fat-tree, d B' = B": fat_tree.build(cluster, server_gbps=cluster.link_gbps),
    }
    return {
        name: predict_architecture(
            topology, graph, cluster, placed, level="flow", seed=seed
        ).iteration_s
        for name, topology in networks.items()
    }
