"""An OpGraph and a Plan as a flow program, which every level runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt import _core
from torch_topoopt.search.lowering import lower_network
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.sim.iteration_program import IterationTasks
from torch_topoopt.sim.layout_program import layout_program
from torch_topoopt.sim.network_paths import paths_of

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.sim.flow_names import FlowName
    from torch_topoopt.sim.iteration_program import IterationProgram, RingSteps
    from torch_topoopt.sim.layout_program import LayoutProgram


def plan_program(
    op_graph: OpGraph,
    plan: Plan,
    *,
    iterations: int = 1,
    ring_steps: RingSteps = "together",
    schedules: bool = False,
) -> _core.FlowProgram:
    """Like `named_plan_program`, without the names."""
    return named_plan_program(
        op_graph, plan, iterations=iterations, ring_steps=ring_steps, schedules=schedules
    )[0]


def named_plan_program(
    op_graph: OpGraph,
    plan: Plan,
    *,
    iterations: int = 1,
    ring_steps: RingSteps = "together",
    schedules: bool = False,
) -> tuple[_core.FlowProgram, dict[int, FlowName]]:
    """`iterations` training iterations of `op_graph` under `plan`, one after another, and the name
    of every flow by the number of its task. `schedules` as `lower_network`; collectives of layouts
    always have them.

    Raises ValueError if the strategy does not fit the graph or the cluster, for an
    unknown accelerator, two servers that must exchange bytes but have no route, no iterations, or
    an unknown `ring_steps`.
    """
    added = traced_plan_program(
        op_graph, plan, iterations=iterations, ring_steps=ring_steps, schedules=schedules
    )
    return added.program, added.names()


def traced_plan_program(
    op_graph: OpGraph,
    plan: Plan,
    *,
    iterations: int = 1,
    ring_steps: RingSteps = "together",
    schedules: bool = False,
) -> IterationProgram | LayoutProgram:
    """Like `named_plan_program`, with a description of every task."""
    cluster, network = plan.cluster, plan.network
    if plan.layout is not None:
        if ring_steps != "together":
            raise ValueError(f"ring_steps: {ring_steps!r} is for plans without a layout")
        return layout_program(op_graph, plan, iterations)
    check_strategy(op_graph, cluster.servers, plan.strategy, micro_batches=plan.micro_batches)
    rings = lower_network(cluster, network, schedules=schedules)
    tasks = IterationTasks.of(
        op_graph, cluster, rings, plan.strategy, plan.micro_batches, ring_steps
    )
    program = _core.FlowProgram(cluster.servers, cluster.servers)
    for link in network.links:
        bits_per_s, latency_ns = cluster.gbps_of(link) * 1e9, cluster.link_latency_s * 1e9
        program.add_link(link.source, link.target, bits_per_s, latency_ns)
    path_of_flow = np.tile(tasks.pair_of_flow, max(iterations, 0))
    paths = [
        [_core.WeightedPath(*path) for path in of_pair]
        for of_pair in paths_of(network, tasks.pairs, tasks.is_direct)
    ]
    return tasks.add_to(program, paths, path_of_flow, iterations)
