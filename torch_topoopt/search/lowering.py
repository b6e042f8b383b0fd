"""OpGraph, Cluster and Network in the form of the C++ core."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from torch_topoopt import _core
from torch_topoopt.plan import BYTES_PER_GBPS, PARAMETER_KINDS, CostModel, RouteTable
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.shards import UNSPLIT, ShardCost, ShardedOperator, may_split, shard_cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch_topoopt.op_graph import MeasuredStep, Operator, OpGraph
    from torch_topoopt.plan import Cluster, Degrees, Group, Network, Placement

_NO_LIMIT = 2**62  # bytes


def degrees_of(strategies: Iterable[Sequence[Placement]]) -> set[Degrees]:
    """All degrees that occur in `strategies`."""
    return {placement.degrees for strategy in strategies for placement in strategy}


def lower_job(
    op_graph: OpGraph,
    cluster: Cluster,
    degrees: Iterable[Degrees],
    *,
    micro_batches: int = 1,
    optimizer_factor: float = 0.0,
) -> _core.Job:
    """The costs of every operator, for each of `degrees` that it may be split into.

    As `shards.shard_cost`. Raises ValueError for an unknown accelerator.
    """
    device = accelerator(cluster.accelerator)
    per_server = cluster.accelerators_per_server
    kinds = (None, *PARAMETER_KINDS)
    listed = sorted(set(degrees), key=lambda d: (d.sample, kinds.index(d.kind), *d[2:]))
    step = op_graph.measured_step
    operators = []
    for operator in op_graph.operators:
        shards = [
            _scaled(
                shard_cost(device, operator, split, per_server, micro_batches, optimizer_factor),
                step,
            )
            if may_split(operator, split)
            else UNSPLIT
            for split in listed
        ]
        whole = [split.dimension for split in operator.splits if split.operands == "whole"]
        operators.append(
            ShardedOperator(
                shards,
                operator.parameter_gradient_bytes,
                [dimension for dimension in whole if dimension != "attribute"],
                "attribute" in whole,
                operator.operands,
            )
        )
    # A ring AllReduce among the accelerators of one server, before the servers' own.
    local = 2 * (per_server - 1) / per_server / device.peer_bytes_per_s
    return _core.Job(
        cluster.servers,
        micro_batches,
        listed,
        local,
        operators,
        buckets=op_graph.gradient_buckets,
        overhead_s=step.overhead_s if step else 0.0,
        servers_at_once=servers_at_once(op_graph),
    )


def servers_at_once(op_graph: OpGraph) -> float:
    """The servers that compute at full speed at once; infinity if none share processors."""
    step = op_graph.measured_step
    return math.inf if step is None or step.servers_at_once is None else step.servers_at_once


def _scaled(cost: ShardCost, step: MeasuredStep | None) -> ShardCost:
    if step is None:
        return cost
    return cost._replace(
        forward_s=cost.forward_s * step.forward_scale,
        backward_s=cost.backward_s * step.backward_scale,
    )


def operand_needs(operator: Operator, placement: Placement) -> tuple[bool, bool]:
    """Whether shards of `operator` on `placement` need whole operands: of the parameters' split,
    and of the positions."""
    kind = placement.parameter_kind
    split = operator.split(kind) if kind else None
    positions = operator.split("attribute") if placement.attribute > 1 else None
    return (
        split is not None and split.operands == "whole",
        positions is not None and positions.operands == "whole",
    )


class ScheduleOptions(TypedDict, total=False):
    """The backend's settings: its cost model (default: the cluster's latency alone),
    TOPOOPT_ALGORITHM, and the ranks on each server (default: 1)."""

    cost: CostModel
    algorithm: str
    ranks_per_server: int


def lower_network(
    cluster: Cluster,
    network: Network,
    *,
    schedules: bool = False,
    **options: Unpack[ScheduleOptions],
) -> _core.RoutedNetwork:
    """`network` with every link at its ports' rate and the cluster's latency.

    The rules of a RouteTable stay rules; where ports differ, every pair's routes are made. With
    `schedules`, each AllReduce takes the algorithm that the backend chooses for its size.
    """
    core = _lowered(cluster, network)
    if schedules:
        ends = [(link.source, link.target) for link in network.links]
        cost = options.get("cost", CostModel.of_latency(cluster.link_latency_s))
        core.add_schedules(
            ends,
            replace(cost, beta_s_per_byte=cost.beta_s_per_byte or 0.0),  # 0: of the links
            options.get("algorithm", "auto"),
            options.get("ranks_per_server", 1),
        )
    return core


def _lowered(cluster: Cluster, network: Network) -> _core.RoutedNetwork:
    if cluster.port_gbps is not None:
        return _uneven_network(cluster, network)
    routes = network.routes
    table = (
        routes if isinstance(routes, RouteTable) else RouteTable(cluster.servers, (), (), routes)
    )
    return _core.RoutedNetwork(
        servers=cluster.servers,
        links=network.links,
        bytes_per_s=cluster.link_bytes_per_s,
        latency_s=cluster.link_latency_s,
        routes=table.listed,
        groups=network.groups,
        by_offset=table.by_offset,
        next_hops=list(itertools.chain.from_iterable(table.next_hops)),
    )


def lower_ideal_switch(cluster: Cluster, *, schedules: bool = False) -> _core.RoutedNetwork:
    """A switch that never blocks, with one link to and from each server: all its ports together.

    A path through it has the latency of one hop (paper section 5.1, "Ideal Switch"). With
    `schedules`, AllReduces may be exchanges in a few steps.
    """
    core = _lowered_ideal_switch(cluster)
    if schedules:
        switches = (cluster.servers, cluster.servers)
        cost = CostModel.of_latency(cluster.link_latency_s)
        core.add_schedules([switches] * 2 * cluster.servers, cost)
    return core


def _lowered_ideal_switch(cluster: Cluster) -> _core.RoutedNetwork:
    if cluster.port_gbps is not None:
        count = cluster.servers
        rates = [cluster.server_gbps(server) * BYTES_PER_GBPS for server in range(count)]
        pairs = {
            (a, b): ([(a, 1.0), (count + b, 1.0)], 1)
            for a, b in itertools.permutations(range(count), 2)
        }
        return _network_of_paths(cluster, [*rates, *rates], pairs, ())
    return _core.RoutedNetwork.ideal_switch(
        cluster.servers, cluster.degree * cluster.link_bytes_per_s, cluster.link_latency_s
    )


def _uneven_network(cluster: Cluster, network: Network) -> _core.RoutedNetwork:
    """Links one by one: bytes between two servers are shared evenly by all links between them."""
    links: dict[tuple[int, int], list[int]] = {}
    for i, link in enumerate(network.links):
        links.setdefault((link.source, link.target), []).append(i)
    pairs: dict[tuple[int, int], tuple[list[tuple[int, float]], int]] = {}
    for pair, routes in network.routes_by_pair().items():
        uses = [
            (i, route.weight / len(links[hop]))
            for route in routes
            for hop in itertools.pairwise(route.servers)
            for i in links[hop]
        ]
        pairs[pair] = (uses, max(len(route.servers) - 1 for route in routes))
    rates = [cluster.gbps_of(link) * BYTES_PER_GBPS for link in network.links]
    return _network_of_paths(cluster, rates, pairs, network.groups)


def _network_of_paths(
    cluster: Cluster,
    bytes_per_s: Sequence[float],
    pairs: Mapping[tuple[int, int], tuple[list[tuple[int, float]], int]],
    groups: Sequence[Group],
) -> _core.RoutedNetwork:
    """`pairs[source, target]` = the links and loads of a byte, and its hops."""
    uses = [use for of_pair, _ in pairs.values() for use in of_pair]
    lengths = [len(of_pair) for of_pair, _ in pairs.values()]
    ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return _core.network_of_paths(
        servers=cluster.servers,
        bytes_per_s=bytes_per_s,
        source=ends[:, 0],
        target=ends[:, 1],
        latency_s=np.array([hops * cluster.link_latency_s for _, hops in pairs.values()]),
        begin=np.array([0, *itertools.accumulate(lengths)], dtype=np.int64),
        link=np.array([link for link, _ in uses], dtype=np.int64),
        load=np.array([load for _, load in uses], dtype=np.float64),
        groups=groups,
    )


def memory_limit(cluster: Cluster) -> int:
    """Bytes of memory that a strategy may use on one accelerator of `cluster`."""
    if not cluster.memory_limited:
        return _NO_LIMIT
    return accelerator(cluster.accelerator).memory_bytes
