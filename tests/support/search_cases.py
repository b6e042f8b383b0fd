"""Searches of small random jobs, and every strategy of tiny ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import Cluster, Degrees, Network
from torch_topoopt.search.lowering import degrees_of, lower_job, lower_network
from torch_topoopt.search.strategies import Strategy, data_parallel
from torch_topoopt.search.traffic import demand
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Placement


def wired(op_graph: OpGraph, cluster: Cluster) -> Network:
    """The network for data parallelism."""
    asked = demand(op_graph, data_parallel(op_graph, cluster.servers), cluster.servers)
    return find_network(cluster, asked)


def coarse_simulator(
    op_graph: OpGraph,
    cluster: Cluster,
    network: Network,
    strategies: Sequence[Strategy],
    micro_batches: int = 1,
    *,
    schedules: bool = False,
) -> _core.CoarseSimulator:
    """The coarse simulator, with the costs of all `strategies`."""
    degrees = {Degrees(1), *degrees_of(strategies)}
    job = lower_job(op_graph, cluster, degrees, micro_batches=micro_batches)
    return _core.CoarseSimulator(job, lower_network(cluster, network, schedules=schedules))


def memory_by_server(
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Sequence[Placement],
    *,
    micro_batches: int = 1,
) -> list[int]:
    """Bytes that each accelerator of each server needs, as `Memory` counts them."""
    job = lower_job(op_graph, cluster, degrees_of([strategy]), micro_batches=micro_batches)
    return _core.memory_bytes(job, strategy)
