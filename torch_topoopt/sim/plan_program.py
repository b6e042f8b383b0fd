"""An OpGraph and a Plan as a flow program, which every level runs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt import _core
from torch_topoopt.search.lowering import lower_network
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.sim.iteration_program import IterationTasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Network, Pair, Plan
    from torch_topoopt.sim.flow_names import FlowName
    from torch_topoopt.sim.iteration_program import IterationProgram, RingSteps

    WeightedLinks = tuple[list[int], float]  # a path and its fraction of the bytes


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
    of every flow by the number of its task. `schedules` as `lower_network`.

    Raises ValueError for a layout, if the strategy does not fit the graph or the cluster, for an
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
) -> IterationProgram:
    """Like `named_plan_program`, with a description of every task."""
    cluster, network = plan.cluster, plan.network
    if plan.layout is not None:
        raise ValueError(f"layout: operators are not placed one by one, but as {plan.layout}")
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


def paths_of(
    network: Network, pairs: Sequence[Pair], is_direct: Sequence[bool]
) -> list[list[WeightedLinks]]:
    """The paths of every pair, or its links if `is_direct`. Parallel links share its bytes.

    Raises ValueError for a pair without a route.
    """
    between: dict[tuple[int, int], list[int]] = {}
    for i, link in enumerate(network.links):
        between.setdefault((link.source, link.target), []).append(i)
    routes = network.routes_by_pair()
    paths: list[list[WeightedLinks]] = []
    for pair, direct in zip(pairs, is_direct, strict=True):
        if direct:
            paths.append(_lanes([between[pair]], 1.0))
            continue
        if pair not in routes:
            raise ValueError(f"routes: no link and no route from server {pair[0]} to {pair[1]}")
        paths.append([])
        for route in routes[pair]:
            hops = [between[hop] for hop in pairwise(route.servers)]
            paths[-1] += _lanes(hops, route.weight)
    return paths


def _lanes(hops: list[list[int]], weight: float) -> list[WeightedLinks]:
    lanes = math.lcm(*(len(links) for links in hops))
    return [([links[lane % len(links)] for links in hops], weight / lanes) for lane in range(lanes)]
