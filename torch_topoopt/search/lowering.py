"""OpGraph, Cluster and Network as the C++ core takes them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt import _core
from torch_topoopt.plan import BYTES_PER_GBPS, RouteTable
from torch_topoopt.search.accelerators import accelerator, operator_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.plan import Cluster, Group, Network, Placement


def lower_job(op_graph: OpGraph, cluster: Cluster, shard_counts: Iterable[int]) -> _core.Job:
    """The costs of every operator, for each number of servers in `shard_counts` that may share it.

    A splittable operator uses all accelerators of a server, each for its part of the samples; any
    other runs on one. Raises ValueError for an unknown accelerator.
    """
    device = accelerator(cluster.accelerator)
    per_server = cluster.accelerators_per_server
    counts = sorted(set(shard_counts))
    operators = []
    for operator in op_graph.operators:
        parts = per_server if operator.splittable else 1
        seconds = [operator_seconds(device, operator, count * parts) for count in counts]
        operators.append(
            (
                [forward for forward, _ in seconds],
                [backward for _, backward in seconds],
                float(operator.parameter_gradient_bytes),
                operator.parameter_bytes + operator.parameter_gradient_bytes,
                math.ceil(operator.saved_bytes / parts),
                [
                    (o.producer, float(o.size_bytes), float(o.gradient_bytes))
                    for o in operator.operands
                ],
            )
        )
    # A ring AllReduce among the accelerators of one server, before the servers' own.
    local = 2 * (per_server - 1) / per_server / device.peer_bytes_per_s
    return _core.Job(cluster.servers, counts, local, operators)


def lower_network(cluster: Cluster, network: Network) -> _core.RoutedNetwork:
    """`network` with every link at the rate of its ports and the cluster's latency.

    The rules of a RouteTable stay rules; where ports differ, every pair's routes are made.
    """
    if cluster.port_gbps is not None:
        return _uneven_network(cluster, network)
    routes = network.routes
    table = (
        routes if isinstance(routes, RouteTable) else RouteTable(cluster.servers, (), (), routes)
    )
    return _core.RoutedNetwork(
        servers=cluster.servers,
        links=[(link.source, link.target) for link in network.links],
        bytes_per_s=cluster.link_bytes_per_s,
        latency_s=cluster.link_latency_s,
        routes=[(route.servers, route.weight) for route in table.listed],
        groups=[
            (list(group.servers), [(list(ring.servers), ring.share) for ring in group.rings])
            for group in network.groups
        ],
        by_offset=[(route.strides, route.weight) for route in table.by_offset],
        next_hops=list(itertools.chain.from_iterable(table.next_hops)),
    )


def lower_ideal_switch(cluster: Cluster) -> _core.RoutedNetwork:
    """A switch that never blocks, with one link to and from each server: all its ports together.

    A path through it has the latency of one hop (paper section 5.1, "Ideal Switch").
    """
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
        groups=[
            (list(group.servers), [(list(ring.servers), ring.share) for ring in group.rings])
            for group in groups
        ],
    )


def memory_limit(cluster: Cluster) -> int:
    """Bytes of memory of one accelerator of `cluster`."""
    return accelerator(cluster.accelerator).memory_bytes


def memory_by_server(
    op_graph: OpGraph, cluster: Cluster, strategy: Sequence[Placement]
) -> list[int]:
    """Bytes that each accelerator of each server needs: parameters, their gradients, and the
    activations kept for the backward pass. Optimizer state is not included."""
    held = [0] * cluster.servers
    for operator, placement in zip(op_graph.operators, strategy, strict=True):
        size = _shard_bytes(operator, cluster, len(placement.servers))
        for server in placement.servers:
            held[server] += size
    return held


def _shard_bytes(operator: Operator, cluster: Cluster, shards: int) -> int:
    parts = cluster.accelerators_per_server if operator.splittable else 1
    saved = math.ceil(math.ceil(operator.saved_bytes / parts) / shards)
    return operator.parameter_bytes + operator.parameter_gradient_bytes + saved
