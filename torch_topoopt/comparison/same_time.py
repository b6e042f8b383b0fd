"""The bandwidth at which each architecture takes as long as one of them, and what it then costs.

Every architecture keeps the strategy, network and rings that a comparison found, and all of its
links get the same factor. More bandwidth is never taken to be slower, so the least factor is found
by doubling or halving and then bisection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt.comparison.cable_prices import cable_cost
from torch_topoopt.comparison.cost import capital_cost
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.comparison.own_search import sent_gbps

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.comparison.compare import Comparison
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster

NEAR = 1e-3  # of the time to reach: slower by less is as fast
_MOST_DOUBLINGS = 12  # of the bandwidth of the comparison, up or down
_PRECISION = 1e-3  # of the factor


@dataclass(frozen=True)
class SameTime:
    """One architecture at the least bandwidth with which it takes at most the time to reach.

    `factor` is of the bandwidth of the comparison, `server_gbps` what a server can then send;
    `cost` is in dollars by TopoOpt's prices, `cable_cost` by HammingMesh's. All of them are None
    where no bandwidth is enough, the last two also where parts have no price.
    """

    architecture: str
    factor: float | None
    server_gbps: float | None
    iteration_s: float | None
    cost: float | None
    cable_cost: float | None


@dataclass(frozen=True)
class SameTimes:
    """`rows` in the order of the comparison; `target_s` is the iteration of `reference` there."""

    reference: str
    target_s: float
    rows: tuple[SameTime, ...]

    def cheapest(self, prices: str) -> str | None:
        """The architecture with the least "cost" or "cable_cost", the first of equal ones; None if
        none has a price."""
        priced = [row for row in self.rows if getattr(row, prices) is not None]
        return min(priced, key=lambda row: getattr(row, prices)).architecture if priced else None


def same_times(
    comparison: Comparison,
    op_graph: OpGraph,
    cluster: Cluster,
    reference: str,
    *,
    seed: int = 0,
    on_progress: Callable[[float | None, str], None] = lambda fraction, text: None,
) -> SameTimes:
    """All rows of `comparison`, which is of `op_graph` on `cluster`, at the time of `reference`.

    Times are those of the flow level. Raises ValueError for a `reference` that has no row.
    """
    names = [row.architecture for row in comparison.rows]
    if reference not in names:
        raise ValueError(f"same-time: {reference!r} is not one of {', '.join(names)}")
    parts = comparison.plan.micro_batches

    def seconds(name: str, factor: float) -> float:
        return predict_architecture(
            scaled(comparison.topologies[name], factor), op_graph, cluster,
            comparison.strategies[name], micro_batches=parts, seed=seed,
        ).iteration_s  # fmt: skip

    target_s = seconds(reference, 1.0)
    rows = []
    for i, name in enumerate(names):
        on_progress(i / len(names), f"{name} at the time of {reference}")
        factor = least_factor(lambda f, name=name: seconds(name, f) <= target_s * (1 + NEAR))  # type: ignore[misc]
        if factor is None:
            rows.append(SameTime(name, None, None, None, None, None))
            continue
        there = scaled(comparison.topologies[name], factor)
        cost = capital_cost(there, cluster)
        rows.append(
            SameTime(
                name,
                factor,
                sent_gbps(there),
                seconds(name, factor),
                None if cost is None else cost.total,
                cable_cost(there, cluster),
            )
        )
    return SameTimes(reference, target_s, tuple(rows))


def scaled(topology: Topology, factor: float) -> Topology:
    """`topology` with `factor` times the rate of every link."""
    links = tuple(replace(link, gbps=link.gbps * factor) for link in topology.links)
    return replace(topology, links=links)


def least_factor(is_enough: Callable[[float], bool]) -> float | None:
    """The least factor that is enough, to 0.1 %; None if the largest is not. What is returned is
    enough; one below it by more than that is not, unless all are."""
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
