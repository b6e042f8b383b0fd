"""The bandwidth at which each architecture is as fast as a reference, and its cost there.

Every architecture begins with its strategy, network and rings from a comparison; one factor scales
all of its links. More bandwidth never counts as slower, so doubling or halving and then bisection
find the least factor. At that bandwidth the architecture is planned again; where that is faster,
the search repeats with less bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.comparison.cable_prices import cable_cost
from torch_topoopt.comparison.cost import capital_cost
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.comparison.own_search import sent_gbps

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.comparison.compare import Comparison
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy

NEAR = 1e-3  # of the target time: slower by less counts as equal
_MOST_DOUBLINGS = 12  # of the comparison's bandwidth, up or down
_PRECISION = 1e-3  # of the factor
_MOST_PLANS = 3  # of an architecture, after that of the comparison


@dataclass(frozen=True)
class SameTime:
    """One architecture at the least bandwidth that reaches the target time.

    `factor` is relative to the comparison's bandwidth, and `server_gbps` is a server's sending rate
    there. `planned_again`: the strategy or network was found there, not in the comparison. `cost`
    is in dollars by TopoOpt's prices, `cable_cost` by HammingMesh's. All of them are None where no
    bandwidth is enough, the last two also where parts have no price.
    """

    architecture: str
    factor: float | None
    server_gbps: float | None
    iteration_s: float | None
    cost: float | None
    cable_cost: float | None
    planned_again: bool = False


@dataclass(frozen=True)
class SameTimes:
    """`rows` in the comparison's order; `target_s` is the iteration time of `reference` there."""

    JSON_FIELDS: ClassVar = (
        "reference", "target_s", "architectures=rows",
        ("cheapest", "cost=cheapest_by_cost", "cable_cost=cheapest_by_cable_cost"),
    )  # fmt: skip

    reference: str
    target_s: float
    rows: tuple[SameTime, ...]

    def cheapest(self, prices: str) -> str | None:
        """The architecture with the least "cost" or "cable_cost", ties to the first; None if none
        has a price."""
        priced = [row for row in self.rows if getattr(row, prices) is not None]
        return min(priced, key=lambda row: getattr(row, prices)).architecture if priced else None

    def cheapest_by_cost(self) -> str | None:
        return self.cheapest("cost")

    def cheapest_by_cable_cost(self) -> str | None:
        return self.cheapest("cable_cost")


@dataclass(frozen=True)
class _Planned:
    """An architecture as planned with all links at `at` times the rate of a comparison."""

    strategy: Strategy
    topology: Topology
    micro_batches: int
    at: float


# Plans an architecture again with that factor on all links; None where that is impossible.
PlanAgain = Callable[[str, float], "tuple[Strategy, Topology, int] | None"]


# parameters: the comparison, its job, the planning function, and the callback
def same_times(
    comparison: Comparison,
    op_graph: OpGraph,
    cluster: Cluster,
    reference: str,
    *,
    seed: int = 0,
    plan_again: PlanAgain = lambda name, factor: None,
    on_progress: Callable[[float | None, str], None] = lambda fraction, text: None,
) -> SameTimes:
    """All rows of `comparison`, which is of `op_graph` on `cluster`, at the time of `reference`.

    `plan_again` is `compare.planned_again`, or keeps the comparison's plan. It is not called for
    `reference`, which sets the target time. Times are those of the flow level.
    Raises ValueError for a `reference` that has no row.
    """
    names = [row.architecture for row in comparison.rows]
    if reference not in names:
        raise ValueError(f"same-time: {reference!r} is not one of {', '.join(names)}")
    parts = comparison.plan.micro_batches

    def seconds(planned: _Planned, factor: float) -> float:
        return predict_architecture(
            scaled(planned.topology, factor / planned.at), op_graph, cluster, planned.strategy,
            micro_batches=planned.micro_batches, seed=seed, schedules=comparison.schedules,
        ).iteration_s  # fmt: skip

    def found(name: str) -> _Planned:
        return _Planned(comparison.strategies[name], comparison.topologies[name], parts, 1.0)

    target_s = seconds(found(reference), 1.0)
    rows = []
    for i, name in enumerate(names):
        on_progress(i / len(names), f"{name} at the time of {reference}")
        best = found(name)
        factor = _least_of(best, seconds, target_s)
        for _ in range(_MOST_PLANS if factor is not None and name != reference else 0):
            assert factor is not None
            again = plan_again(name, factor)
            planned = again and _Planned(*again, factor)
            if planned is None or seconds(planned, factor) >= seconds(best, factor) * (1 - NEAR):
                break
            best, factor = planned, _least_of(planned, seconds, target_s)
        rows.append(_row(name, best, factor, seconds, cluster))
    return SameTimes(reference, target_s, tuple(rows))


_Seconds = Callable[[_Planned, float], float]


def _least_of(planned: _Planned, seconds: _Seconds, target_s: float) -> float | None:
    """The least factor that reaches the time; the search begins at the planned bandwidth."""
    least = least_factor(lambda f: seconds(planned, f * planned.at) <= target_s * (1 + NEAR))
    return least and least * planned.at


def _row(
    name: str, planned: _Planned, factor: float | None, seconds: _Seconds, cluster: Cluster
) -> SameTime:
    if factor is None:
        return SameTime(name, None, None, None, None, None)
    there = scaled(planned.topology, factor / planned.at)
    cost = capital_cost(there, cluster)
    return SameTime(
        *(name, factor, sent_gbps(there), seconds(planned, factor)),
        None if cost is None else cost.total,
        cable_cost(there, cluster),
        planned_again=planned.at != 1.0,
    )


def scaled(topology: Topology, factor: float) -> Topology:
    """`topology` with `factor` times the rate of every link."""
    links = tuple(replace(link, gbps=link.gbps * factor) for link in topology.links)
    return replace(topology, links=links)


def least_factor(is_enough: Callable[[float], bool]) -> float | None:
    """The least sufficient factor, to 0.1 %; None if the largest is not sufficient. The result is
    sufficient; a factor below it by more than 0.1 % is not, unless all are."""
    high = 1.0
    if is_enough(high):
        for _ in range(_MOST_DOUBLINGS):
            if not is_enough(high / 2):
                break
            high /= 2
        else:
            return high
    else:
        for _ in range(_MOST_DOUBLINGS):
            high *= 2
            if is_enough(high):
                break
        else:
            return None
    low = high / 2
    while high / low > 1 + _PRECISION:
        middle = (low * high) ** 0.5
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high
