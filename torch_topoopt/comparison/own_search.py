"""A strategy search of its own for every static architecture (paper section 5.1).

The searches run at the bandwidths of a fixed list, from the lowest to the first that is not below
the architecture's own, each starting from the earlier results. So a result is a candidate at all
higher bandwidths, and more bandwidth never makes an architecture slower, however short the
searches.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.architectures.routing import Routes, lower_topology
from torch_topoopt.search.chains import ThreadedChains
from torch_topoopt.search.lowering import lower_ideal_switch
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import expert_starts, layer_runs_below

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.strategies import Strategy

_RATES_GBPS = (10.0, 25.0, 40.0, 100.0, 200.0)  # of a port (paper, Table 2); then they double
_KEPT = 2  # strategies of each search
MOST_SERVERS = 256  # a search routes all their pairs


def searched_gbps(gbps: float) -> tuple[float, ...]:
    """The port rates of the searches for a network with ports of `gbps`."""
    rates = list(_RATES_GBPS)
    while rates[-1] < gbps:
        rates.append(2 * rates[-1])
    return tuple(rate for i, rate in enumerate(rates) if i == 0 or rates[i - 1] < gbps)


def sent_gbps(topology: Topology) -> float:
    """The most that a server of `topology` can send."""
    rates = [0.0] * topology.servers
    for link in topology.links:
        if link.source < topology.servers:
            rates[link.source] += link.gbps
    return max(rates)


def _all_pairs(topology: Topology, factor: float = 1.0, *, schedules: bool) -> _core.RoutedNetwork:
    """`topology` with the routes of all pairs of servers, and `factor` times its rates; `schedules`
    as `lower_topology`."""
    # rounded, so that a rate is the same number from whatever rate it is computed
    links = tuple(
        replace(link, gbps=float(f"{link.gbps * factor:.12g}")) for link in topology.links
    )
    routes = Routes(replace(topology, links=links))
    pairs = itertools.permutations(range(topology.servers), 2)
    return lower_topology(routes, pairs, schedules=schedules).network


class OwnSearches:
    """The searches of one comparison, all with `micro_batches`.

    Those at a port rate begin at `starts_at` it; without any, nothing is searched. The searches at
    the paper's rates share the proposals of one round. `schedules` as `predict_on`.
    """

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        options: PlanningOptions,
        micro_batches: int,
        starts_at: Callable[[float], tuple[Strategy, ...]],
        *,
        schedules: bool = False,
    ) -> None:
        self._cluster = cluster
        self._schedules = schedules
        self._options = options
        self._evaluations = options.evaluations_of(op_graph, cluster.servers)
        self._starts_at = lru_cache(starts_at)
        self._problem = SearchProblem(
            op_graph,
            cluster,
            None,
            self._starts_at(_RATES_GBPS[0]),
            dimensions=options.dimensions,
            micro_batches=micro_batches,
            optimizer_factor=options.optimizer_factor,
        )
        self._switch: dict[float, tuple[Strategy, ...]] = {}  # by port rate
        self._runs: dict[float, tuple[Strategy, ...]] = {}  # the same, from layers in runs

    def starts(self, gbps: float) -> tuple[Strategy, ...]:
        """The starts of searches for ports of `gbps`."""
        found = (start for rate in searched_gbps(gbps) for start in self._starts_at(rate))
        return tuple(dict.fromkeys(found))

    def of_switch(self, gbps: float) -> tuple[Strategy, ...]:
        """All strategies found on an ideal switch for ports of `gbps`, without layers in runs.

        Runs need a network that carries rings of any servers alike; moving circuits do not.
        """
        found: dict[Strategy, None] = {}
        if not self._starts_at(_RATES_GBPS[0]):
            return ()
        for rate in searched_gbps(gbps):
            if rate not in self._switch:
                self._switch[rate] = self._search(self._switch_of(rate), tuple(found), rate)
            found.update(dict.fromkeys(self._switch[rate]))
        return tuple(found)

    def _of_switch_with_runs(self, gbps: float) -> tuple[Strategy, ...]:
        """`of_switch`, and strategies found from layers in runs where these are faster."""
        found: dict[Strategy, None] = {}
        for rate in searched_gbps(gbps) if self._options.strategy is None else ():
            if rate not in self._runs:
                begin = tuple(dict.fromkeys((*self.of_switch(rate), *found)))
                network = self._switch_of(rate)
                runs = layer_runs_below(self._problem.changed(network, begin)) if begin else ()
                self._runs[rate] = self._search(network, (*begin, *runs), rate) if runs else ()
            found.update(dict.fromkeys(self._runs[rate]))
        return tuple(dict.fromkeys((*self.of_switch(gbps), *found)))

    def of(self, topology: Topology) -> tuple[Strategy, ...]:
        """All strategies found on `topology`, and on an ideal switch of its rates."""
        gbps = sent_gbps(topology) / self._cluster.degree
        found = dict.fromkeys(self._of_switch_with_runs(gbps))
        if not found or topology.architecture == "ideal-switch" or topology.servers > MOST_SERVERS:
            return tuple(found)
        own: dict[Strategy, None] = {}
        for rate in searched_gbps(gbps):
            begin = dict.fromkeys((*self._of_switch_with_runs(rate), *own))
            network = _all_pairs(topology, rate / gbps, schedules=self._schedules)
            own.update(dict.fromkeys(self._search(network, tuple(begin), rate)))
        return tuple(dict.fromkeys((*found, *own)))

    def _switch_of(self, rate: float) -> _core.RoutedNetwork:
        cluster = replace(self._cluster, link_gbps=rate, port_gbps=None)
        return lower_ideal_switch(cluster, schedules=self._schedules)

    def _search(
        self, network: _core.RoutedNetwork, begin: tuple[Strategy, ...], rate: float
    ) -> tuple[Strategy, ...]:
        """The best few on `network`, from `begin` and the starts at that rate."""
        options = self._options
        starts = tuple(dict.fromkeys((*begin, *self._starts_at(rate))))
        problem = self._problem.changed(network, starts)
        if options.strategy is None:
            starts = tuple(dict.fromkeys((*starts, *expert_starts(problem))))
            problem = problem.changed(network, starts)
        chains = ThreadedChains(
            problem,
            seed=options.seed,
            chains=options.search.chains,
            workers=options.search.workers,
        )
        result = chains.run(-(-self._evaluations // len(_RATES_GBPS)))
        return tuple(candidate.strategy for candidate in result.candidates[:_KEPT])

    def fastest(self, topology: Topology, candidates: tuple[Strategy, ...]) -> Strategy:
        """The first of the `candidates` that are fastest on `topology`, at flow level."""
        job = self._problem.job(candidates)
        network = _all_pairs(topology, schedules=self._schedules)
        return min(
            candidates,
            key=lambda strategy: _core.simulate_iteration(job, network, strategy).iteration_s,
        )
