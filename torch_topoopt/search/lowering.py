"""OpGraph, Cluster and Network as the C++ core takes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.search.accelerators import accelerator, operator_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.plan import Cluster, Network, Placement


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
    """`network` with every link at the cluster's bandwidth and latency."""
    return _core.RoutedNetwork(
        servers=cluster.servers,
        links=[(link.source, link.target) for link in network.links],
        bytes_per_s=cluster.link_bytes_per_s,
        latency_s=cluster.link_latency_s,
        routes=[(list(route.servers), route.weight) for route in network.routes],
        groups=[
            (list(group.servers), [(list(ring.servers), ring.share) for ring in group.rings])
            for group in network.groups
        ],
    )


def lower_ideal_switch(cluster: Cluster) -> _core.RoutedNetwork:
    """A switch that never blocks, with one link of degree x link rate to and from each server.

    A path through it has the latency of one hop (paper section 5.1, "Ideal Switch").
    """
    return _core.RoutedNetwork.ideal_switch(
        cluster.servers, cluster.degree * cluster.link_bytes_per_s, cluster.link_latency_s
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
