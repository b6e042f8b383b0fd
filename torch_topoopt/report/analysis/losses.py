"""The effect of the loss of any one cable on rings, routes and the predicted iteration.

Cables with equally expensive losses form a class; the iteration is simulated for the worst of each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from torch_topoopt.plan import cables
from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.sim.iteration import price
from torch_topoopt.topology.failures.failure_plans import (
    degraded,
    failure_figures,
    plan_failures,
)

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Network, Plan
    from torch_topoopt.topology.failures.failure_plans import FailureFigures

_MOST_CLASSES = 12  # that are simulated


@dataclass(frozen=True)
class CableLoss:
    """`cable` counts cables; `of_class` is an index into `Losses.classes`. `pairs` is how many
    pairs of servers had a route over it. `detours` are the ways of ring hops that lost their link.
    Times are of the busiest link; None where the network is not connected without it."""

    cable: int
    of_class: int
    pairs: int
    rings_given_up: int
    rings: int
    detours: tuple[tuple[int, ...], ...]
    all_reduce_s: float | None
    busiest_s: float | None


@dataclass(frozen=True)
class LossClass:
    """`iteration_s` is simulated without the worst of its cables; None: not simulated, or not
    connected."""

    cables: int
    worst_cable: int
    iteration_s: float | None


@dataclass(frozen=True)
class Losses:
    """Of a network whose busiest link takes `busiest_s`, of AllReduce alone `all_reduce_s`, and
    that is simulated to take `iteration_s` (None: not simulated). `figures` are those of every
    loss, of servers too."""

    all_reduce_s: float
    busiest_s: float
    iteration_s: float | None
    figures: tuple[FailureFigures, ...]
    losses: tuple[CableLoss, ...]
    classes: tuple[LossClass, ...]


def losses(plan: Plan, op_graph: OpGraph | None) -> Losses | None:
    """Without `op_graph` nothing is simulated; None for a plan without links."""
    if not plan.network.links:
        return None
    if plan.failures is None:
        failures = plan_failures(plan.cluster, plan.network, plan.demand)
        plan = replace(plan, failures=failures)
    whole, figures = failure_figures(plan)
    of_cables = [figure for figure in figures if not figure.is_server]
    crossing = _pairs_over(plan)
    kinds: dict[object, list[int]] = {}
    for i, figure in enumerate(of_cables):
        kinds.setdefault(_kind(plan, figure), []).append(i)
    classes: list[LossClass] = []
    class_of: dict[int, int] = {}
    worst_first = sorted(kinds.values(), key=lambda members: -_busiest(of_cables, members))
    for members in worst_first:
        worst = max(members, key=lambda i: of_cables[i].busiest_s or float("inf"))
        simulated = None
        if len(classes) < _MOST_CLASSES and op_graph is not None:
            simulated = _iteration_without(plan, op_graph, of_cables[worst])
        class_of |= dict.fromkeys(members, len(classes))
        classes.append(LossClass(len(members), worst, simulated))
    assert whole.all_reduce_s is not None
    assert whole.busiest_s is not None
    found = []
    for i, (together, figure) in enumerate(
        zip(cables(plan.cluster, plan.network), of_cables, strict=True)
    ):
        pairs = sum(crossing[_ends(plan, link)] for link in together)
        found.append(_loss(plan, i, class_of[i], pairs, figure))
    whole_s = None if op_graph is None else _iteration_on(plan, op_graph, plan.network)
    return Losses(
        whole.all_reduce_s, whole.busiest_s, whole_s, tuple(figures), tuple(found), tuple(classes)
    )


def _busiest(figures: list[FailureFigures], members: list[int]) -> float:
    return max(figures[i].busiest_s or float("inf") for i in members)


def _kind(plan: Plan, figure: FailureFigures) -> object:
    """A key: losses of equal kind have equal costs to two digits."""
    failure = figure.failure
    assert failure is not None
    dropped = tuple((drop.group, len(drop.rings)) for drop in failure.dropped)
    link = plan.network.links[failure.lost]
    size = plan.cluster.servers
    stride = (link.target - link.source) % size
    busiest = None if figure.busiest_s is None else f"{figure.busiest_s:.1e}"
    regular = min(stride, size - stride) if len(plan.network.groups) <= 1 else 0
    return failure.connected, dropped, busiest, regular if _is_circulant(plan) else 0


def _is_circulant(plan: Plan) -> bool:
    """Whether all servers are cabled alike, so that strides tell cables apart."""
    size = plan.cluster.servers
    strides = Counter((link.target - link.source) % size for link in plan.network.links)
    return all(count % size == 0 for count in strides.values())


def _ends(plan: Plan, link: int) -> tuple[int, int]:
    return plan.network.links[link].source, plan.network.links[link].target


def _pairs_over(plan: Plan) -> Counter[tuple[int, int]]:
    crossing: Counter[tuple[int, int]] = Counter()
    for routes in plan.network.routes_by_pair().values():
        hops = {hop for route in routes for hop in pairwise(route.servers)}
        crossing.update(hops)
    return crossing


def _iteration_without(plan: Plan, op_graph: OpGraph, figure: FailureFigures) -> float | None:
    failure = figure.failure
    assert failure is not None
    if not failure.connected:
        return None
    return _iteration_on(plan, op_graph, degraded(plan, link=failure.lost))


def _iteration_on(plan: Plan, op_graph: OpGraph, network: Network) -> float:
    problem = LoweredProblem(op_graph, plan.cluster, schedules=True)
    return price(problem, network, plan.strategy, plan.micro_batches).iteration_s


def _loss(plan: Plan, cable: int, of_class: int, pairs: int, figure: FailureFigures) -> CableLoss:
    failure = figure.failure
    assert failure is not None
    return CableLoss(
        cable,
        of_class,
        pairs,
        sum(len(dropped.rings) for dropped in failure.dropped),
        sum(len(plan.network.groups[dropped.group].rings) for dropped in failure.dropped),
        tuple(route.servers for route in failure.detours),
        figure.all_reduce_s,
        figure.busiest_s,
    )
