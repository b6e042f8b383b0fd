"""The paper's jobs on its clusters: 4 A100 a server, List 1's batch on each."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from torch_topoopt.launcher.documents import op_graph_of
from torch_topoopt.plan import Cluster, Network
from torch_topoopt.search.strategies import whole_operators
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.routing.policies import reroute

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Demand
    from torch_topoopt.search.strategies import Strategy

PER_SERVER = 4


@lru_cache(maxsize=64)
def graph_of(model: str, servers: int, batch: int | None = None) -> OpGraph:
    """The model with `batch` samples (default: List 1's) on each accelerator."""
    accelerators = servers * PER_SERVER
    if batch is None:
        return op_graph_of(model, accelerators=accelerators)
    return op_graph_of(model, batch * accelerators)


def cluster_of(servers: int, degree: int, gbps: float) -> Cluster:
    """Servers of four A100 with `degree` duplex ports of `gbps`."""
    return Cluster(*(servers, degree, gbps), accelerators_per_server=PER_SERVER, accelerator="a100")


def tables_on_servers(graph: OpGraph, cluster: Cluster) -> Strategy:
    """Every embedding table whole on a server of its own, the rest data parallel: the worst case
    of section 5.4 where there are as many tables as servers."""
    tables = [i for i, o in enumerate(graph.operators) if o.name.startswith("tables.")]
    if not tables:
        raise ValueError(f"model: {graph.model!r} has no embedding tables")
    return whole_operators(graph, cluster, tables)


def network_of(cluster: Cluster, demand: Demand, mode: str, seed: int) -> Network:
    """TopologyFinder's network for `demand`; mode "released" routes as the artifact does: one
    shortest path by lot for every pair. Mode "best" spreads the load (`optimal` routing)."""
    if mode == "released":
        network = find_network(cluster, demand, mode="released")
        return reroute(network, demand, cluster.servers, "random", seed=seed)
    if mode == "best":
        search = NetworkSearch(seed=seed)
        return find_network(cluster, demand, mode="best", routing="optimal", search=search)
    return find_network(cluster, demand, mode="paper")
