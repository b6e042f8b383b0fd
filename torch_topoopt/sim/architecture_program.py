"""Iterations on an architecture as a flow program: every flow with one explicit path.

What packets need, and single-path ECMP: where comparison.flow_level spreads a transfer over all
shortest paths, here each flow takes one of them, chosen at random in proportion to the rates (or
the weights of listed paths). A ring AllReduce is one flow per hop.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.architectures.path_picker import PathPicker
from torch_topoopt.architectures.routing import Routes, lower_topology
from torch_topoopt.search.lowering import servers_at_once
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.sim.iteration_tasks import check_iterations, iteration_tasks, repeated_tasks

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy


def architecture_program(
    topology: Topology,
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
    seed: int = 0,
    iterations: int = 1,
) -> _core.FlowProgram:
    """`iterations` iterations of `op_graph` split by `strategy` on `topology`, one after another.

    `seed` chooses the paths. Raises ValueError for a topology that changes during a run, another
    number of servers, a strategy that does not fit, servers without a path, or no iterations.
    """
    if topology.reconfiguration is not None:
        raise ValueError(
            f"topology: the circuits of {topology.architecture} change during a run; as a program "
            "they run at packet level only"
        )
    check_iterations(iterations)
    if topology.servers != cluster.servers:
        raise ValueError(
            f"topology: has {topology.servers} servers, and the cluster {cluster.servers}"
        )
    check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)
    routes = Routes(topology)
    rings = lower_topology(routes, ()).network.rings
    once = iteration_tasks(op_graph, cluster, strategy, rings, routes.path_latency_s, micro_batches)
    picker = PathPicker(routes, random.Random(seed))
    tasks, _ = repeated_tasks(once, iterations, lambda task: picker.links(task.source, task.target))
    links = [
        (link.source, link.target, link.gbps * 1e9, link.latency_s * 1e9) for link in topology.links
    ]
    return _core.FlowProgram.of_tasks(
        topology.nodes,
        topology.servers,
        links,
        tasks,
        [],
        hosts_at_once=servers_at_once(op_graph),
    )
