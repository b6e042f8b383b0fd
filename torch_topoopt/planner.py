"""The alternating optimisation of strategy and network (paper section 4.1, Figure 6).

Each round searches the strategy at a fixed network, then rewires the network for that strategy with
TopologyFinder. Unlike the released artifact, which rebuilds the topology inside the search, this is
the paper's outer loop: both halves of a pair are always priced together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from torch_topoopt.plan import Plan, Prediction, Round, SearchSample, validate_network
from torch_topoopt.search.mcmc import StrategySearch
from torch_topoopt.search.strategies import (
    check_memory,
    data_parallel,
    starting_strategies,
)
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import complete_groups, predict, predict_ideal_switch
from torch_topoopt.topology.load_checks import validate_link_bytes
from torch_topoopt.topology.routing_policies import POLICIES
from torch_topoopt.topology.single_ring import single_ring
from torch_topoopt.topology.topology_finder import find_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network
    from torch_topoopt.search.strategies import Executable, Strategy
    from torch_topoopt.sim import IterationEstimate
    from torch_topoopt.topology.routing_policies import Policy

CONVERGED = 1e-3  # a round that gains less than this fraction is the last
_CURVE_POINTS = 25  # samples of the search curve per round


@dataclass(frozen=True)
class PlanProgress:
    """Where `plan` is: in `round` (from 1) of at most `rounds`, searching or wiring.

    `evaluations` of `budget` proposals are judged; times are predicted seconds per iteration.
    """

    stage: Literal["search", "network"]
    round: int
    rounds: int
    evaluations: int
    budget: int
    current_s: float
    best_s: float


@dataclass(frozen=True)
class _Pair:
    """A strategy and a network, priced together."""

    strategy: Strategy
    network: Network
    estimate: IterationEstimate


def plan(
    op_graph: OpGraph,
    cluster: Cluster,
    *,
    seed: int = 0,
    rounds: int = 4,
    evaluations: int = 2000,
    strategy_space: Literal["full", "data-parallel"] = "full",
    mode: Literal["paper", "best"] = "paper",
    network: Network | None = None,
    routing: Policy = "shortest",
    executable: Executable | None = None,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> Plan:
    """The best pair of strategy and network found for `op_graph` on `cluster`, validated.

    At most `rounds` rounds of `evaluations` proposals each, until a round gains less than 0.1 %.
    With "data-parallel" every operator runs on every server and only the network is planned. Mode
    "best" goes on from the best pair of mode "paper" for as many rounds again, wired by
    TopologyFinder's mode best for the least predicted iteration: its plan is never worse. With a
    `network` that is there already (cables that people plugged) only the strategy is planned.
    `routing` is a policy of `routing_policies`; a network that is there keeps its routes. With
    `executable`, only strategies are considered all of whose placements it accepts. The same
    arguments give the same Plan, byte for byte. `on_progress` is called between slices of the
    search; whatever it raises ends the planning, as Ctrl-C does, and leaves nothing behind.

    Raises DocumentError for an invalid OpGraph or Cluster, and ValueError for an argument out of
    range, an unknown accelerator, fewer samples than servers, or too little accelerator memory.
    """
    op_graph.validate()
    cluster.validate(any_degree=network is not None)
    if network is not None:
        validate_network(cluster, network)
    _check_arguments(seed, rounds, evaluations, strategy_space, mode)
    if routing not in POLICIES:
        raise ValueError(f"routing: {routing!r} is not one of {', '.join(POLICIES)}")
    loop = _Alternation(
        op_graph,
        cluster,
        seed,
        evaluations,
        mode,
        rounds,
        network,
        routing,
        executable,
        on_progress,
    )
    if strategy_space == "data-parallel":
        loop.plan_data_parallel()
    else:
        loop.alternate()
    return loop.result(strategy_space)


def _check_arguments(
    seed: int, rounds: int, evaluations: int, strategy_space: str, mode: str
) -> None:
    if seed < 0:
        raise ValueError(f"seed: {seed} is negative")
    if rounds < 1:
        raise ValueError(f"rounds: {rounds} is not at least 1")
    if evaluations < 0:
        raise ValueError(f"evaluations: {evaluations} is negative")
    if strategy_space not in ("full", "data-parallel"):
        raise ValueError(f"strategy_space: {strategy_space!r} is not 'full' or 'data-parallel'")
    if mode not in ("paper", "best"):
        raise ValueError(f"mode: {mode!r} is not 'paper' or 'best'")


class _Alternation:
    """The state of one call of `plan`: the best pair so far, the rounds and the search curve."""

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        seed: int,
        evaluations: int,
        mode: Literal["paper", "best"],
        max_rounds: int,
        given: Network | None,
        routing: Policy,
        executable: Executable | None,
        on_progress: Callable[[PlanProgress], None] | None,
    ) -> None:
        self._op_graph = op_graph
        self._cluster = cluster
        self._seed = seed
        self._evaluations = evaluations
        self._mode = mode
        self._max_rounds = max_rounds
        self._given = given
        self._routing: Policy = routing
        self._executable = executable
        self._on_progress = on_progress
        self._best: _Pair | None = None
        self._rounds: list[Round] = []
        self._samples: list[SearchSample] = []

    def plan_data_parallel(self) -> None:
        """One round in which there is nothing to search but, in mode best, the network."""
        strategy = data_parallel(self._op_graph, self._cluster.servers)
        check_memory(self._op_graph, self._cluster, strategy)
        pair = self._price(strategy, self._wire(strategy, self._mode))
        self._finish_round(pair, pair)

    def alternate(self) -> None:
        """Rounds of search and rewiring; the first searches on the network for data parallelism."""
        starts = starting_strategies(self._op_graph, self._cluster, self._executable)
        everywhere = data_parallel(self._op_graph, self._cluster.servers)
        self._alternate_from(self._wire(everywhere, "paper"), starts, "paper")
        if self._mode == "best" and self._given is None:
            assert self._best is not None
            best = self._best.strategy
            starts = tuple(dict.fromkeys((best, *starts)))
            self._alternate_from(self._wire(best, "best"), starts, "best")

    def _alternate_from(
        self, network: Network, starts: tuple[Strategy, ...], mode: Literal["paper", "best"]
    ) -> None:
        """Rounds that begin with a search on `network`, until one gains little."""
        for _ in range(self._max_rounds):
            before_s = self._best_s
            found = self._search(network, starts)
            self._report("network", 0, found.estimate.iteration_s)
            rewired = self._price(found.strategy, self._wire(found.strategy, mode))
            self._finish_round(found, rewired)
            if not self._best_s < before_s * (1 - CONVERGED):
                break
            assert self._best is not None
            network = self._best.network
            starts = tuple(dict.fromkeys((self._best.strategy, *starts)))

    def result(self, strategy_space: Literal["full", "data-parallel"]) -> Plan:
        """The Plan of the best pair."""
        assert self._best is not None
        best = self._best
        ring_s, switch_s = self._references(best.strategy)
        asked = demand(self._op_graph, best.strategy, self._cluster.servers)
        validate_link_bytes(self._cluster.servers, best.network, asked, best.estimate.link_bytes)
        return Plan(
            version=Plan.VERSION,
            model=self._op_graph.model,
            batch_size=self._op_graph.batch_size,
            seed=self._seed,
            mode=self._mode if self._given is None else "fixed",
            strategy_space=strategy_space,
            cluster=self._cluster,
            network=best.network,
            demand=asked,
            prediction=Prediction(
                iteration_s=_rounded(best.estimate.iteration_s),
                compute_s=_rounded(best.estimate.compute_s),
                single_ring_s=_rounded(ring_s),
                ideal_switch_s=_rounded(switch_s),
                link_bytes=best.estimate.link_bytes,
            ),
            rounds=tuple(self._rounds),
            search=tuple(self._samples),
            strategy=best.strategy,
        ).validate()

    @property
    def _best_s(self) -> float:
        return self._best.estimate.iteration_s if self._best else math.inf

    def _wire(self, strategy: Strategy, mode: Literal["paper", "best"]) -> Network:
        if self._given is not None:
            return self._given
        asked = demand(self._op_graph, strategy, self._cluster.servers)

        def price(network: Network) -> float:
            return self._price(strategy, network).estimate.iteration_s

        return find_network(
            self._cluster,
            asked,
            mode=mode,
            seed=self._seed,
            price=price if mode == "best" else None,
            routing=self._routing,
        )

    def _price(self, strategy: Strategy, network: Network) -> _Pair:
        complete = complete_groups(self._cluster, network, strategy)
        estimate = predict(self._op_graph, self._cluster, complete, strategy)
        return _Pair(strategy, complete, estimate)

    def _search(self, network: Network, starts: tuple[Strategy, ...]) -> _Pair:
        """The chain's best strategy on `network`."""
        chain = StrategySearch(
            self._op_graph,
            self._cluster,
            network,
            starts,
            seed=self._seed + len(self._rounds) * 0x9E3779B97F4A7C15,
            executable=self._executable,
        )
        done = len(self._rounds) * self._evaluations
        step = max(1, self._evaluations // _CURVE_POINTS)
        due = 0

        def record(sample: SearchSample) -> None:
            nonlocal due
            if sample.evaluations >= due or sample.evaluations == self._evaluations:
                due = sample.evaluations + step
                best_s = min(sample.best_s, self._best_s)
                self._samples.append(
                    SearchSample(
                        done + sample.evaluations, _rounded(sample.current_s), _rounded(best_s)
                    )
                )
            self._report("search", sample.evaluations, sample.current_s, sample.best_s)

        record(chain.sample())
        chain.run(self._evaluations, record)
        return self._price(chain.best(), network)

    def _report(
        self,
        stage: Literal["search", "network"],
        evaluations: int,
        current_s: float,
        best_s: float = math.inf,
    ) -> None:
        if self._on_progress is None:
            return
        self._on_progress(
            PlanProgress(
                stage=stage,
                round=len(self._rounds) + 1,
                rounds=self._max_rounds * (2 if self._mode == "best" else 1),
                evaluations=evaluations,
                budget=self._evaluations,
                current_s=current_s,
                best_s=min(best_s, current_s, self._best_s),
            )
        )

    def _references(self, strategy: Strategy) -> tuple[float, float]:
        """Seconds of the same strategy on a single ring and on an ideal switch."""
        asked = demand(self._op_graph, strategy, self._cluster.servers)
        cluster = self._cluster
        if self._given is not None:  # of any degree; a single ring takes two ports of each server
            degree = 2 if cluster.servers > 2 else 1
            cluster = replace(cluster, degree=degree, port_gbps=None)
        ring = self._price(strategy, single_ring(cluster, asked))
        switch = predict_ideal_switch(self._op_graph, self._cluster, strategy)
        return ring.estimate.iteration_s, switch.iteration_s

    def _finish_round(self, found: _Pair, rewired: _Pair) -> None:
        """Keeps the better of the two pairs if it is the best so far, and records the round."""
        cost_s = rewired.estimate.iteration_s
        better = rewired if cost_s <= found.estimate.iteration_s else found
        accepted = better.estimate.iteration_s < self._best_s
        if accepted:
            self._best = better
        ring_s, switch_s = self._references(found.strategy)
        self._rounds.append(
            Round(
                strategy_s=_rounded(found.estimate.iteration_s),
                network_s=_rounded(rewired.estimate.iteration_s),
                single_ring_s=_rounded(ring_s),
                ideal_switch_s=_rounded(switch_s),
                accepted=accepted,
            )
        )


def _rounded(seconds: float) -> float:
    """12 significant digits, so that the text of a Plan does not hang on the last bit."""
    return float(f"{seconds:.12g}")
