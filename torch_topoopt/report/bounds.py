"""The traffic of an operation, and the least time that the links of a plan allow for it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Plan
    from torch_topoopt.plan.rank_work import OperationTimes, RankWork


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth, as nccl-tests counts: bytes over the busiest link."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


_MANY_NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def bus_gbps(one: OperationTimes) -> float | None:
    """Bus bandwidth of an operation of a training job, in Gb/s (nccl-tests' busbw is this / 8, in
    GB/s), by whichever of its names PyTorch called it. None: it took no time."""
    rate = one.algorithm_gbps
    return None if rate is None else rate * _bus_factor(one)


def _bus_factor(one: OperationTimes) -> float:
    base = next((name for name in _MANY_NAMES if one.name.startswith(name)), one.name)
    return bus_factor(base, one.ranks)


def mean_bus_gbps(works: Sequence[RankWork], operations: Sequence[OperationTimes]) -> float | None:
    """Bus bytes of all collectives of an iteration over the time of its operations, on the rank
    that waited least for others; in Gb/s. None: there were none."""
    under_way_s = min((work.under_way_s for work in works), default=0.0)
    moved = sum(one.per_iteration * one.size_bytes * _bus_factor(one) for one in operations)
    return moved * 8e-9 / under_way_s if moved and under_way_s > 0 else None


def least_seconds(
    plan: Plan, operation: str, size_bytes: int, link_bytes_per_s: float
) -> float | None:
    """A lower bound on the time on links of `link_bytes_per_s`; None for other operations.

    A server sends and receives over all its links at once. all_reduce, all_gather and
    reduce_scatter: each server must send its bus bytes. broadcast and reduce: every byte must
    enter, or leave, a server. all_to_all: the busiest link, with the routes and weights of the
    plan. sendrecv: one route carries it.
    """
    ranks = plan.cluster.servers
    if size_bytes == 0 or ranks == 1:
        return None
    if operation == "all_to_all":
        return size_bytes / ranks * busiest_link_pairs(plan) / link_bytes_per_s
    if operation == "sendrecv":
        return size_bytes / link_bytes_per_s
    moved = size_bytes * bus_factor(operation, ranks)
    return moved / (fewest_links(plan) * link_bytes_per_s)


def fewest_links(plan: Plan) -> int:
    """The number of outgoing links of the server that has the fewest."""
    links = Counter(link.source for link in plan.network.links)
    return min(links[server] for server in range(plan.cluster.servers))


def busiest_link_pairs(plan: Plan) -> float:
    """The number of (source, destination) pairs that cross the busiest link, weighted by routes."""
    loads: dict[tuple[int, int], float] = {}
    for routes in plan.network.routes_by_pair().values():
        for route in routes:
            for hop in zip(route.servers, route.servers[1:], strict=False):
                loads[hop] = loads.get(hop, 0.0) + route.weight
    parallel = Counter((link.source, link.target) for link in plan.network.links)
    return max(load / parallel[hop] for hop, load in loads.items())


def hop_count(plan: Plan, source: int, target: int) -> int:
    """The links that the kernels' route between two servers has."""
    return len(plan.network.heaviest_routes()[source, target]) - 1
