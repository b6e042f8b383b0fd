"""Flows to route, and figures of a path assignment."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt import _core
    from torch_topoopt.route_control.clos_network import ClosNetwork, Link


@dataclass(frozen=True)
class SwitchedFlow:
    """From ToR to another ToR. `job` names its owner, for fairness among jobs."""

    source: int
    target: int
    demand: float = 1.0
    job: int = 0


class RoutingProblem:
    """Flows on a network. Raises ValueError for a flow that is not between two of its ToRs, has no
    demand above 0, or no path."""

    def __init__(self, network: ClosNetwork, flows: Sequence[SwitchedFlow]) -> None:
        for i, flow in enumerate(flows):
            ends = flow.source, flow.target
            if not all(0 <= end < network.tors for end in ends) or flow.source == flow.target:
                raise ValueError(
                    f"flows[{i}]: [{flow.source}, {flow.target}] are not two of {network.tors} ToRs"
                )
            if not 0 < flow.demand < float("inf"):
                raise ValueError(f"flows[{i}]: demand {flow.demand} is not a number above 0")
            if not network.paths(*ends):
                raise ValueError(f"flows[{i}]: no path is left from {ends[0]} to {ends[1]}")
        self.network = network
        self.flows = tuple(flows)

    @cached_property
    def ends(self) -> tuple[Link, ...]:
        """The pairs with flows, sorted."""
        return tuple(sorted(set(self.edges)))

    @cached_property
    def table(self) -> _core.SwitchedPaths:
        return self.network.table(self.ends)

    @cached_property
    def pairs(self) -> list[int]:
        """Per flow the number of its pair in `ends`."""
        number = {pair: i for i, pair in enumerate(self.ends)}
        return [number[edge] for edge in self.edges]

    @cached_property
    def demands(self) -> list[float]:
        return [flow.demand for flow in self.flows]

    @cached_property
    def edges(self) -> list[Link]:
        """Per flow source and target."""
        return [(flow.source, flow.target) for flow in self.flows]

    @cached_property
    def is_alike(self) -> bool:
        """Whether all flows have the same demand."""
        return len(set(self.demands)) <= 1

    def prepare(self) -> None:
        """Computes the lazy inputs of schemes now: the paths of all pairs, the pairs of flows, and
        whether demands and capacities are uniform."""
        _ = self.table, self.pairs, self.is_alike
        _ = self.network.is_uniform, self.network.common_spines

    def max_link_load(self, choice: Sequence[int]) -> float:
        """The largest demand on a link over its capacity, with path `choice[i]` for flow i."""
        loads = self.table.loads(self.pairs, self.demands, list(choice))
        capacity = self.network.capacity
        links = self.network.links
        return max(
            (load / capacity[link] for load, link in zip(loads, links, strict=True)), default=0.0
        )

    def bound(self) -> float:
        """A lower bound on `max_link_load`: the traffic of a ToR crosses its live links, and a flow
        one of its paths.

        Demands that are multiples of one number fill links of equal capacity in whole steps of it.
        """
        network = self.network
        widest = [network.widest(*pair) for pair in self.ends]
        demands, pairs = self.demands, self.pairs
        largest = max(
            (d / widest[pair] for d, pair in zip(demands, pairs, strict=True)), default=0.0
        )
        for end in (0, 1):
            of_tor: dict[int, list[float]] = defaultdict(list)
            for edge, demand in zip(self.edges, demands, strict=True):
                of_tor[edge[end]].append(demand)
            for tor, its_demands in of_tor.items():
                largest = max(largest, _shared(its_demands, network.rates_at[end][tor]))
        return largest


def _shared(demands: Sequence[float], rates: Sequence[float]) -> float:
    """The least congestion of links of these rates that together carry the demands."""
    least = sum(demands) / sum(rates)
    step = _common_step(demands)
    if step is not None and len(set(rates)) == 1:
        steps = round(sum(demands) / step)
        least = max(least, -(-steps // len(rates)) * step / rates[0])
    return least


def _common_step(demands: Sequence[float]) -> float | None:
    """The greatest common divisor of all demands, if they are integers."""
    import math

    if any(demand != int(demand) for demand in demands):
        return None
    return float(math.gcd(*map(int, demands)))
