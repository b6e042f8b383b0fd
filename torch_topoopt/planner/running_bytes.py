"""The bytes of an iteration on each link, as the ranks of a job choose their algorithms.

Prediction.link_bytes is made before a job: without its cost model, and in mode paper with rings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import Demand
from torch_topoopt.profile.script import CommunicationTrace, demand_of, on_servers
from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.search.lowering import lower_network
from torch_topoopt.sim.iteration import price
from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import CostModel, Plan
    from torch_topoopt.search.lowering import ScheduleOptions

_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}


def predicting(
    plan: Plan,
    source: OpGraph | CommunicationTrace,
    cost: CostModel,
    algorithm: str = "auto",
) -> Plan:
    """`plan` with the link bytes that its job has with this cost model and TOPOOPT_ALGORITHM;
    `source` is what the plan was made for."""
    cluster = plan.cluster
    options: ScheduleOptions = {
        "cost": cost,
        "algorithm": algorithm,
        "ranks_per_server": cluster.accelerators_per_server,
    }
    if isinstance(source, CommunicationTrace):
        sizes = _of_trace(plan, source, options)
    else:
        problem = LoweredProblem(source, cluster, schedules=True, **options)
        sizes = price(problem, plan.network, plan.strategy, plan.micro_batches).link_bytes
    return replace(plan, prediction=replace(plan.prediction, link_bytes=sizes))


def _of_trace(plan: Plan, trace: CommunicationTrace, options: ScheduleOptions) -> tuple[int, ...]:
    """The calls of an iteration, each group's as its first traced member made them."""
    cluster, network = plan.cluster, plan.network
    per_server = cluster.accelerators_per_server
    core = lower_network(cluster, network, schedules=True, **options)
    demand = on_servers(demand_of(trace)[0], per_server)
    pairs = traffic_matrix(network, Demand((), demand.pairs), cluster.servers)
    total = link_bytes(network, pairs)
    calls = Counter(
        (call.operation, tuple(sorted(call.group)), call.size_bytes, call.peer)
        for call in trace.repeated
        if call.operation in _COLLECTIVES
        and call.rank == next(rank for rank in call.group if rank in trace.ranks)
    )
    for (operation, group, size_bytes, peer), count in calls.items():
        members = [rank // per_server for rank in group]
        root = 0 if peer is None else group.index(peer)
        sent = core.collective_link_bytes(_COLLECTIVES[operation], members, size_bytes, root)
        total += count * np.array(sent) / trace.period
    return tuple(round(size) for size in total.tolist())
