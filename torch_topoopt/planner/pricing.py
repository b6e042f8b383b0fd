"""The price of a strategy and a network together, and the network wired for a strategy.

Both halves of a pair are always priced together, by the simulator at flow level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from torch_topoopt.plan import Prediction
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim.iteration import complete_groups, price, seconds_of
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.single_ring import single_ring

if TYPE_CHECKING:
    from torch_topoopt.plan import Network
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.lowered_problem import LoweredProblem
    from torch_topoopt.search.strategies import Strategy
    from torch_topoopt.user_functions import UserFunction

    WiringMode = Literal["paper", "best"] | UserFunction


@dataclass(frozen=True)
class PricedPair:
    """A strategy and a network, and the seconds of an iteration with that many micro-batches."""

    strategy: Strategy
    network: Network
    iteration_s: float
    micro_batches: int


class PairPricing:
    """Prices of the OpGraph of `problem` on its cluster; `options` say how networks are wired.

    Everywhere, `count` is the number of micro-batches.
    """

    def __init__(self, problem: LoweredProblem, options: PlanningOptions) -> None:
        self._op_graph = problem.op_graph
        self._cluster = problem.cluster
        self._options = options
        self._problem = problem
        self.schedules = problem.schedules
        self._references: dict[tuple[Strategy, int], tuple[float, float]] = {}
        self._wired: dict[tuple[Strategy, WiringMode, int], Network] = {}

    def price(self, strategy: Strategy, network: Network, count: int) -> PricedPair:
        """The pair, with rings on `network` for each group that the strategy needs."""
        seconds = seconds_of(self._problem, network, strategy, count)
        complete = complete_groups(self._cluster, network, strategy, self._problem.network)
        return PricedPair(strategy, complete, seconds, count)

    def wire(self, strategy: Strategy, mode: WiringMode, count: int) -> Network:
        """The network for `strategy`: the existing one, else TopologyFinder's; in mode best the one
        with the least predicted iteration."""
        if self._options.network is not None:
            return self._options.network
        key = strategy, mode, count
        if key not in self._wired:
            self._wired[key] = self._wire(strategy, mode, count)
        return self._wired[key]

    def _wire(self, strategy: Strategy, mode: WiringMode, count: int) -> Network:
        options = self._options
        traffic = demand(self._op_graph, strategy, self._cluster.servers)

        def seconds(network: Network) -> float:
            return seconds_of(self._problem, network, strategy, count)

        return find_network(
            self._cluster,
            traffic,
            mode=mode,
            routing=options.routing,
            search=NetworkSearch(seed=options.seed, price=seconds if mode == "best" else None),
        )

    def wired(self, strategy: Strategy, mode: WiringMode, count: int) -> PricedPair:
        """`strategy` on the network that is wired for it."""
        return self.price(strategy, self.wire(strategy, mode, count), count)

    def ideal_switch_s(self, strategy: Strategy, count: int) -> float:
        """Seconds per iteration where all servers are on one ideal switch."""
        return seconds_of(self._problem, None, strategy, count)

    def single_ring_s(self, strategy: Strategy, count: int) -> float:
        """Seconds per iteration where all ports are on a single ring."""
        cluster = self._cluster
        traffic = demand(self._op_graph, strategy, cluster.servers)
        if self._options.network is not None:  # of any degree, while a ring takes two ports
            degree = 2 if cluster.servers > 2 else 1
            cluster = replace(cluster, degree=degree, port_gbps=None)
        return seconds_of(self._problem, single_ring(cluster, traffic), strategy, count)

    def prediction(self, pair: PricedPair) -> Prediction:
        """The prediction of a Plan with this pair."""
        estimate = price(self._problem, pair.network, pair.strategy, pair.micro_batches)
        single_ring_s, ideal_switch_s = self.references(pair)
        return Prediction(
            iteration_s=rounded(pair.iteration_s),
            compute_s=rounded(estimate.compute_s),
            single_ring_s=single_ring_s,
            ideal_switch_s=ideal_switch_s,
            link_bytes=estimate.link_bytes,
        )

    def references(self, pair: PricedPair) -> tuple[float, float]:
        """Rounded seconds per iteration of the same strategy on a single ring and on an ideal
        switch."""
        key = strategy, count = pair.strategy, pair.micro_batches
        if key not in self._references:
            ring_s = rounded(self.single_ring_s(strategy, count))
            self._references[key] = ring_s, rounded(self.ideal_switch_s(strategy, count))
        return self._references[key]


def rounded(seconds: float) -> float:
    """12 significant digits, so that the text of a Plan does not depend on the last bit."""
    return float(f"{seconds:.12g}")
