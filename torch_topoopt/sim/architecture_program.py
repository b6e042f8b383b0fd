"""Iterations on an architecture as a flow program: every flow with one explicit path.

The packet level and single-path ECMP need such flows. `predict_architecture` spreads a transfer
over all shortest paths; here each flow uses one of them, chosen at random in proportion to the
rates (or the weights of listed paths).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt import _core
from torch_topoopt.architectures.adaptive import adaptive_routing
from torch_topoopt.architectures.path_picker import PathPicker
from torch_topoopt.architectures.routing import Routes, lower_topology, ring_hops
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim.iteration_program import IterationTasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Demand, Pair
    from torch_topoopt.search.strategies import Strategy
    from torch_topoopt.sim.iteration_program import RingSteps


def architecture_program(
    topology: Topology,
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
    seed: int = 0,
    iterations: int = 1,
    ring_steps: RingSteps | None = "together",
) -> _core.FlowProgram:
    """`iterations` iterations of `op_graph` split by `strategy` on `topology`, one after another.

    `seed` chooses the paths. `ring_steps` None: AllReduces take the fastest way of `lower_network`
    with schedules. Raises ValueError for a topology that changes during a run, a wrong number of
    servers, a strategy that does not fit, servers without a path, no iterations, or an unknown
    `ring_steps`.
    """
    if topology.reconfiguration is not None:
        raise ValueError(
            f"topology: the circuits of {topology.architecture} change during a run, and a program "
            "has no circuits that move"
        )
    if topology.servers != cluster.servers:
        raise ValueError(
            f"topology: has {topology.servers} servers, and the cluster {cluster.servers}"
        )
    check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)
    routes = Routes(topology)
    asked = demand(op_graph, strategy, cluster.servers)
    rings = _all_reduce_network(routes, asked, schedules=ring_steps is None)
    steps = ring_steps or "together"
    tasks = IterationTasks.of(op_graph, cluster, rings, strategy, micro_batches, steps)
    program = _core.FlowProgram(topology.nodes, topology.servers)
    for link in topology.links:
        program.add_link(link.source, link.target, link.gbps * 1e9, link.latency_s * 1e9)
    picker = PathPicker(routes, random.Random(seed))
    numbers: dict[tuple[int, ...], int] = {}
    picked = [
        numbers.setdefault(
            tuple(picker.links(*tasks.pairs[pair], direct=tasks.is_direct[pair])), len(numbers)
        )
        for _ in range(iterations)
        for pair in tasks.pair_of_flow.tolist()
    ]
    paths = [[_core.WeightedPath(links)] for links in numbers]
    return tasks.add_to(program, paths, np.array(picked, dtype=np.int32), iterations).program


def _all_reduce_network(routes: Routes, asked: Demand, *, schedules: bool) -> _core.RoutedNetwork:
    """The rings of every group, and the paths of groups that have alternatives to them."""
    pairs: set[Pair] = set()
    for group in asked.groups:
        has_choice = schedules or routes.rings.grid(group.servers)
        if group.size_bytes and len(group.servers) > 1 and has_choice:
            pairs |= ring_hops(routes.rings, group.servers, schedules=schedules)
    return lower_topology(routes, pairs, schedules=schedules).network if pairs else routes.rings


def routed(options: Mapping[str, Any], topology: Topology) -> dict[str, Any]:
    """Options of the packet level for a program on `topology`; adaptive packets follow its
    `channel_rule`. Raises ValueError like `adaptive_routing`."""
    given = dict(options)
    if given.get("path_choice") == "adaptive":
        given.setdefault("routing", adaptive_routing(topology))
    return given
