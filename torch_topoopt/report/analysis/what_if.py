"""Predicted iterations at other bandwidths, batch sizes and degrees, for a page to interpolate.

The strategy is that of the plan. At another degree, TopologyFinder wires a new network for the
plan's demand; at the plan's own degree its own network is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt.plan import POLICIES
from torch_topoopt.report.results import reach
from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.sim.iteration import price
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.plan import Cluster, Network, Plan

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the plan's
BATCHES = (0.25, 0.5, 1.0, 2.0, 4.0)
_HELD_OUT = (0.3536, 0.7071, 1.4142, 2.8284)  # half way between the bandwidths, in logarithms


@dataclass(frozen=True)
class AtDegree:
    """`iteration_s[w][b]` at `BANDWIDTHS[w]` and `batches[b]`; None in the row of a batch that
    could not be priced. `busiest_bytes` is on its busiest link at the plan's batch."""

    degree: int
    cables: int
    mean_hops: float
    iteration_s: tuple[tuple[float | None, ...], ...]
    compute_s: tuple[float | None, ...]
    busiest_bytes: int
    ideal_switch_s: float


@dataclass(frozen=True)
class WhatIf:
    """`worst_error` is the largest relative error of the interpolation over the bandwidth, at
    bandwidths half way between the simulated ones. `refused`: degree -> the reason."""

    gbps: tuple[float, ...]
    batches: tuple[int, ...]
    degrees: tuple[AtDegree, ...]
    refused: dict[int, str]
    worst_error: float


def what_if(op_graph: OpGraph, plan: Plan) -> WhatIf | None:
    """None if there is no network to change. Raises ValueError like `sim.predict`."""
    cluster = plan.cluster
    if not plan.network.links:
        return None
    scales = [scale for scale in BATCHES if _whole_batch(plan, scale)]
    graphs = [scaled_batch(op_graph, scale) for scale in scales]
    found, refused = [], {}
    for degree in range(max(1, cluster.degree - 1), cluster.degree + 3):
        changed, network = cluster, plan.network
        if degree != cluster.degree:
            changed = replace(cluster, degree=degree, port_gbps=None)
            try:
                changed.validate()
                routing = plan.routing if plan.routing in POLICIES else "shortest"
                network = find_network(changed, plan.demand, routing=routing)  # type: ignore[arg-type]
            except ValueError as refusal:
                refused[degree] = str(refusal)
                continue
        found.append(_at_degree(graphs, scales, plan, changed, network))
    gbps = tuple(cluster.link_gbps * scale for scale in BANDWIDTHS)
    batches = tuple(round(plan.batch_size * scale) for scale in scales)
    own = next(entry for entry in found if entry.degree == cluster.degree)
    error = _worst_error(op_graph, plan, [row[scales.index(1.0)] for row in own.iteration_s])
    return WhatIf(gbps, batches, tuple(found), refused, error)


def _whole_batch(plan: Plan, scale: float) -> bool:
    batch = plan.batch_size * scale
    return batch == int(batch) and batch >= 1 and int(batch) % plan.micro_batches == 0


def _at_degree(
    graphs: list[OpGraph], scales: list[float], plan: Plan, cluster: Cluster, network: Network
) -> AtDegree:
    table: list[tuple[float | None, ...]] = []
    compute: list[float | None] = [None] * len(graphs)
    busiest = 0
    for scale in BANDWIDTHS:
        faster = with_bandwidth(cluster, scale)
        row: list[float | None] = []
        for i, graph in enumerate(graphs):
            estimate = price(
                LoweredProblem(graph, faster, schedules=True),
                network,
                plan.strategy,
                plan.micro_batches,
            )
            row.append(estimate.iteration_s)
            compute[i] = estimate.compute_s
            if scales[i] == 1.0:
                busiest = max(estimate.link_bytes, default=0)
        table.append(tuple(row))
    own = graphs[scales.index(1.0)]
    problem = LoweredProblem(own, cluster, schedules=True)
    ideal = price(problem, None, plan.strategy, plan.micro_batches)
    cables = len(network.links) // (2 if cluster.ports == "duplex" else 1)
    return AtDegree(
        cluster.degree, cables, reach(network).mean_hops, tuple(table), tuple(compute), busiest,
        ideal.iteration_s,
    )  # fmt: skip


def with_bandwidth(cluster: Cluster, scale: float) -> Cluster:
    """`cluster` with all rates of its ports `scale` times as high."""
    rates = cluster.port_gbps
    if rates is not None:
        rates = tuple(tuple(gbps * scale for gbps in row) for row in rates)
    return replace(cluster, link_gbps=cluster.link_gbps * scale, port_gbps=rates)


def scaled_batch(op_graph: OpGraph, scale: float) -> OpGraph:
    """`op_graph` with `scale` times as many samples: FLOPs and activations of operators that have
    samples grow with them, parameters and their gradients do not."""
    if scale == 1.0:
        return op_graph
    operators = tuple(_scaled(operator, scale) for operator in op_graph.operators)
    batch_size = round(op_graph.batch_size * scale)
    return replace(op_graph, batch_size=batch_size, operators=operators)


def _scaled(operator: Operator, scale: float) -> Operator:
    if not operator.splittable:
        return operator

    def times(value: int) -> int:
        return round(value * scale)

    activations = max(0, operator.memory_bytes - operator.parameter_bytes)
    return replace(
        operator,
        forward_flops=times(operator.forward_flops),
        backward_flops=times(operator.backward_flops),
        output_bytes=times(operator.output_bytes),
        saved_bytes=times(operator.saved_bytes),
        memory_bytes=operator.memory_bytes - activations + times(activations),
        operands=tuple(
            replace(
                operand,
                size_bytes=times(operand.size_bytes),
                gradient_bytes=times(operand.gradient_bytes),
            )
            for operand in operator.operands
        ),
        measured=tuple(replace(cost, shards=cost.shards * scale) for cost in operator.measured),
    )


def _worst_error(op_graph: OpGraph, plan: Plan, sampled: list[float | None]) -> float:
    """The error of the page's interpolation, which is linear in the time of a byte."""
    worst = 0.0
    for low, scale in enumerate(_HELD_OUT):
        before, after = sampled[low], sampled[low + 1]
        if before is None or after is None:
            continue
        faster = with_bandwidth(plan.cluster, scale)
        real = price(
            LoweredProblem(op_graph, faster, schedules=True),
            plan.network,
            plan.strategy,
            plan.micro_batches,
        ).iteration_s
        x, x0, x1 = 1 / scale, 1 / BANDWIDTHS[low], 1 / BANDWIDTHS[low + 1]
        guess = before + (after - before) * (x - x0) / (x1 - x0)
        worst = max(worst, abs(guess / real - 1))
    return worst
