"""Predictions of one training iteration at the flow level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import Group, Network
from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.search.lowering import degrees_of, lower_network
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.search.traffic import parameter_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy


@dataclass(frozen=True)
class IterationEstimate:
    """One simulated iteration. `compute_s` is the compute time of the busiest server;
    `link_bytes[i]` belongs to `network.links[i]` (ideal switch: links in, then links out)."""

    iteration_s: float
    compute_s: float
    link_bytes: tuple[int, ...]


def predict(
    op_graph: OpGraph,
    cluster: Cluster,
    network: Network,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
    schedules: bool = False,
) -> IterationEstimate:
    """Simulates one iteration of `op_graph` split by `strategy` on `network`.

    It simulates both passes of every operator on the servers of its placement, and transfers of
    activations and gradients between placements over the network's routes. Each bucket of gradients
    (without buckets: each operator) has an AllReduce, which starts when its gradients are ready and
    overlaps with the rest. It uses rings or rows and columns, with `schedules` also those of
    `lower_network`. A group without rings uses those that `complete_groups` would add. Several
    micro-batches follow the schedule 1F1B.

    Raises ValueError for an unknown accelerator, a strategy that does not fit `op_graph` or the
    cluster, or two servers that must exchange bytes but have no route.
    """
    problem = LoweredProblem(op_graph, cluster, schedules=schedules)
    return price(problem, network, strategy, micro_batches)


def predict_ideal_switch(
    op_graph: OpGraph, cluster: Cluster, strategy: Strategy, *, micro_batches: int = 1
) -> IterationEstimate:
    """The same on a switch that never blocks, with degree x link rate to and from each server.

    No network of the same degree and link rate carries more bytes in the same time, and none is
    faster for data parallelism or for one transfer at a time. It is no strict lower bound for every
    strategy: a critical transfer may have a direct link to itself, but shares its server's one link
    to the switch with transfers that no operator waits for.
    """
    return price(LoweredProblem(op_graph, cluster), None, strategy, micro_batches)


def price(
    problem: LoweredProblem, network: Network | None, strategy: Strategy, micro_batches: int
) -> IterationEstimate:
    """`predict`, or `predict_ideal_switch` where `network` is None, for many strategies."""
    found = _simulated(problem, network, strategy, micro_batches)
    link_bytes = tuple(round(size) for size in found.link_bytes)
    return IterationEstimate(found.iteration_s, found.compute_s, link_bytes)


def seconds_of(
    problem: LoweredProblem, network: Network | None, strategy: Strategy, micro_batches: int
) -> float:
    """The `iteration_s` of `price`; results cached in `problem` are not simulated again."""
    prices = problem.iteration_prices(network, micro_batches)
    seconds = prices.find(strategy)
    if seconds is None:
        found = _simulated(problem, network, strategy, micro_batches)
        seconds = found.iteration_s
        prices.add(strategy, seconds, found.tasks)
    return seconds


def _simulated(
    problem: LoweredProblem, network: Network | None, strategy: Strategy, micro_batches: int
) -> _core.SimulatedIteration:
    check_strategy(problem.op_graph, problem.cluster.servers, strategy, micro_batches=micro_batches)
    return _core.simulate_iteration(
        problem.job(degrees_of([strategy]), micro_batches), problem.network(network), strategy
    )


def complete_groups(
    cluster: Cluster,
    network: Network,
    strategy: Strategy,
    lower: Callable[[Network], _core.RoutedNetwork] | None = None,
) -> Network:
    """`network` with rings added for every group of `strategy` that has none.

    The simulator uses the same rings: those of the smallest group that contains the set, restricted
    to its members. `lower`, if given, lowers `network` on demand, for example from a cache.
    """
    known = {tuple(sorted(group.servers)) for group in network.groups}
    groups = {group for placement in set(strategy) for group in parameter_groups(placement)}
    missing = {group for group in groups if len(group) > 1} - known
    if not missing:
        return network
    core = lower(network) if lower else lower_network(cluster, network)
    added = tuple(Group(servers, tuple(core.rings(servers))) for servers in sorted(missing))
    return Network(network.links, (*network.groups, *added), network.routes)
