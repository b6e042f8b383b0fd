"""An OpGraph scaled to the measured computation time of a step of the script."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.op_graph import MeasuredStep
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.shards import shard_cost

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy


def with_measured_step(
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    forward_s: float,
    backward_s: float,
    overhead_s: float,
    servers_at_once: float | None = None,
    micro_batches: int = 1,
) -> OpGraph:
    """`op_graph` with a MeasuredStep: the mean time of servers under `strategy`.

    `forward_s` and `backward_s` are seconds of a server in all operators of an iteration, as
    measured, if it computes by itself; the ratio to their costs becomes the scale of every
    operator. Where operators cost nothing, the seconds count as overhead. `servers_at_once`: as in
    MeasuredStep.
    """
    device = accelerator(cluster.accelerator)
    costs = [0.0, 0.0]
    for operator, placement in zip(op_graph.operators, strategy, strict=True):
        one = shard_cost(
            device, operator, placement.degrees, cluster.accelerators_per_server, micro_batches
        )
        times = len(placement.servers) * micro_batches / cluster.servers
        costs = [cost + seconds * times for cost, seconds in zip(costs, one[:2], strict=True)]
    scales = []
    for cost_s, measured_s in zip(costs, (forward_s, backward_s), strict=True):
        scales.append(measured_s / cost_s if cost_s else 1.0)
        overhead_s += 0.0 if cost_s else measured_s
    measured = MeasuredStep(overhead_s, scales[0], scales[1], servers_at_once)
    return replace(op_graph, measured_step=measured).validate()
