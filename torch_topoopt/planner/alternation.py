"""The alternating optimisation of strategy and network (paper section 4.1, Figure 6).

Each round searches a strategy on a fixed network, then rewires the network for that strategy with
TopologyFinder. This is the paper's outer loop; the released artifact instead rebuilds the topology
inside the search. `pricing` prices a pair of strategy and network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from torch_topoopt.plan import Plan, Round, SearchSample, validate_network
from torch_topoopt.planner.descents import Descents
from torch_topoopt.planner.effort import LARGE_ON_RINGS, LARGE_ON_SCHEDULES, LARGE_STEPS, UNLIMITED
from torch_topoopt.planner.first_network import first_pair
from torch_topoopt.planner.layout_planning import LayoutPlanning, trainer_of
from torch_topoopt.planner.options import CONVERGED, DEFAULT_OPTIONS, PlanningOptions
from torch_topoopt.planner.pricing import PairPricing, rounded
from torch_topoopt.planner.search_problems import SearchProblems
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.chains import budgets
from torch_topoopt.search.defaults import few_servers
from torch_topoopt.search.layouts.state import trained_state
from torch_topoopt.search.strategies import data_parallel, everywhere
from torch_topoopt.search.traffic import demand
from torch_topoopt.search.two_levels import TwoLevelSearch
from torch_topoopt.topology.routing.load_checks import validate_link_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network
    from torch_topoopt.planner.effort import Effort
    from torch_topoopt.planner.pricing import PricedPair, WiringMode
    from torch_topoopt.planner.search_problems import Starts
    from torch_topoopt.search.chains import ChainProgress
    from torch_topoopt.search.strategies import Strategy


_MUCH_SLOWER = 0.1  # than the best pair: such a network gets no search
_WIRED_FOR = 3  # strategies of a search that get networks of their own
_FAILURES_ON_FEW = 1  # rounds with little gain before the last one, on few servers
_MOST_OPERATORS = 400  # of a model with blocks: more take minutes, and layouts hold the fast ones
_NEARLY = 0.1  # slower starts of other numbers of micro-batches are not searched
_MOST_COUNTS = 2  # numbers of micro-batches that are searched besides one
_CURVE_POINTS = 25  # samples of the search curve per round


@dataclass(frozen=True)
class PlanProgress:
    """The progress of `plan`: in `round` (from 1) of at most `rounds`, searching or wiring.

    `evaluations` of `budget` proposals are judged, and `accepted` of them accepted. Times are
    predicted seconds per iteration, by the simulator of the search.
    """

    stage: Literal["search", "network"]
    round: int
    rounds: int
    evaluations: int
    budget: int
    accepted: int
    current_s: float
    best_s: float


def plan(
    op_graph: OpGraph,
    cluster: Cluster,
    options: PlanningOptions = DEFAULT_OPTIONS,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> Plan:
    """The best pair of strategy and network found for `op_graph` on `cluster`, validated.

    `options` set the space, budget and starts of the search. The same arguments give the same Plan,
    byte for byte. `on_progress` is called between slices of the search. Its exception ends the
    planning, as Ctrl-C does; `Planning` still has the best plan so far.

    Raises DocumentError for an invalid OpGraph or Cluster, and ValueError for an option out of
    range, an unknown accelerator, fewer samples than servers, or too little accelerator memory.
    """
    return Planning(op_graph, cluster, options, on_progress).run()


class Planning:
    """One call of `plan`: the best pair so far, the rounds and the search curve."""

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        options: PlanningOptions = DEFAULT_OPTIONS,
        on_progress: Callable[[PlanProgress], None] | None = None,
    ) -> None:
        """Raises DocumentError and ValueError as `plan` does for its arguments."""
        op_graph.validate()
        cluster.validate(any_degree=options.network is not None)
        if options.network is not None:
            validate_network(cluster, options.network)
        options.validate()
        self._op_graph = op_graph
        self._cluster = cluster
        self._layouts: LayoutPlanning | None = None
        self._layouts_alone = options.strategy_space == "layouts"
        self._of_layouts: Plan | None = None
        if options.strategy_space in ("layouts", "all"):
            self._layouts = LayoutPlanning(op_graph, cluster, options, self._report_layout)
            options = replace(options, strategy_space="full")
        has_blocks = self._layouts is not None and self._layouts.has_blocks
        if has_blocks or options.optimizer is not None:
            state = trained_state(trainer_of(options), accelerator(cluster.accelerator))
            options = replace(options, optimizer_factor=state.optimizer)
        self._options = options
        self._evaluations = options.evaluations_of(op_graph, cluster.servers)
        self._most_rounds = options.rounds_of(cluster.servers)
        self._on_progress = on_progress
        self._problems = SearchProblems(op_graph, cluster, options)
        self._pricing = PairPricing(self._problems.lowered, options)
        self._best: PricedPair | None = None
        self._pairs: list[PricedPair] = []  # of each round, on few servers
        self._rounds: list[Round] = []
        self._of_rounds: list[tuple[PricedPair, PricedPair]] = []  # the last, or all to price again
        self._begun_at: Starts = {}  # of all numbers of micro-batches so far
        self._samples: list[SearchSample] = []
        self._searching: tuple[TwoLevelSearch, Network, int] | None = None
        self._large = False  # whether a search was
        self._candidates: list[Strategy] = []  # of the last search, best first
        self._round = 1
        self._proposed = 0  # in all finished searches
        self._proposed_before = 0  # in all finished rounds
        self._curve_s = math.inf  # the least time of all searches
        self._of_mode_paper: Callable[[], Plan] | None = None

    @property
    def of_mode_paper(self) -> Plan | None:
        """The Plan that mode best began with; None before that and in other modes."""
        return self._of_mode_paper() if self._of_mode_paper is not None else None

    def run(self) -> Plan:
        """Plans; raises as `plan` does."""
        if self._layouts is None:
            return self._plan_strategies()
        return self._plan_layouts(self._layouts)

    def _plan_layouts(self, layouts: LayoutPlanning) -> Plan:
        """The best layout, or a strategy that is faster. Models without blocks have strategies, and
        a layout only if no strategy fits."""
        if self._layouts_alone or layouts.has_blocks:
            layouts.check_state()
        large = len(self._op_graph.operators) > _MOST_OPERATORS and layouts.has_blocks
        refused: ValueError | None = None
        if self._layouts_alone or layouts.has_blocks:
            try:
                self._of_layouts = layouts.plan()
            except ValueError as error:
                if self._layouts_alone or large:
                    raise
                refused = error
        if self._of_layouts is not None and (self._layouts_alone or large):
            return self._of_layouts
        try:
            plan = self._plan_strategies()
        except ValueError as error:
            if refused is not None:
                raise refused from error
            return self._of_layouts or layouts.plan()
        return self._faster(plan)

    def _faster(self, plan: Plan) -> Plan:
        """`plan`, or that of the best layout if it is faster.

        The flow simulator prices both in the terms of strategies, with the optimizer's step.
        """
        layouts, layout = self._layouts, self._of_layouts
        if layouts is None or layout is None:
            return plan
        seconds = plan.prediction.iteration_s + layouts.optimizer_s(plan.strategy)
        return plan if seconds <= layouts.without_overheads_s(layout) else layout

    def _report_layout(self, done: int, of: int, best_s: float) -> None:
        if self._on_progress is not None:
            self._on_progress(PlanProgress("network", done + 1, of, 0, 0, 0, best_s, best_s))

    def _plan_strategies(self) -> Plan:
        if self._options.strategy_space == "data-parallel":
            self._price_schedules()
            self._plan_data_parallel()
        elif self._options.ablation == "topology-only":
            self._price_schedules()
            self._plan_naively()
        else:
            self._alternate()
        return self._result()

    def best_so_far(self) -> Plan | None:
        """The Plan of the best pair after `run` was interrupted; None if there is none yet."""
        if self._searching is not None:
            search, network, count = self._searching
            self._searching = None
            pair = self._pricing.price(search.best(), network, count)
            self._finish_round(pair, pair)
        return self._of_layouts if self._best is None else self._faster(self._result())

    def priced(self, plan: Plan) -> Plan:
        """`plan` with the prediction for this OpGraph; the figures of its rounds stay.

        Use it when costs of the same operators have been measured more accurately.
        """
        self._price_schedules()
        pair = self._pricing.price(plan.strategy, plan.network, plan.micro_batches)
        prediction = replace(self._pricing.prediction(pair), link_bytes=plan.prediction.link_bytes)
        return replace(plan, prediction=prediction).validate()

    def _price_schedules(self) -> None:
        """Prices all pairs on the fastest schedules from now on, if mode best does so.

        Finished rounds are priced again, and the best pair of them is kept. The search curve starts
        again, because its samples were priced on rings.
        """
        if self._pricing.schedules or not self._options.prices_schedules:
            return
        self._problems = SearchProblems(
            self._op_graph, self._cluster, self._options, schedules=True, before=self._problems
        )
        pricing = self._pricing = PairPricing(self._problems.lowered, self._options)

        def again(pair: PricedPair) -> PricedPair:
            return pricing.price(pair.strategy, pair.network, pair.micro_batches)

        finished, self._of_rounds = self._of_rounds, []
        pairs = [again(pair) for pair in self._pairs]
        self._best, self._rounds = None, []
        self._samples, self._curve_s = [], math.inf
        for found, rewired in finished:
            self._finish_round(again(found), again(rewired))
        self._pairs = pairs

    def _plan_data_parallel(self) -> None:
        """One round without a strategy search; in mode best it searches the network."""
        strategy = data_parallel(self._op_graph, self._cluster.servers)
        for count in self._problems.of_each_count(
            lambda count: (self._problems.check(strategy, count),)
        ):
            pair = self._pricing.wired(strategy, self._options.mode, count)
            self._finish_round(pair, pair)

    def _plan_naively(self) -> None:
        """Searches the strategy on an ideal switch, then wires the network."""
        starts = self._problems.of_each_count(self._problems.starts)
        all_servers = everywhere(self._op_graph, self._cluster.servers)
        default = self._pricing.wire(all_servers, self._options.first_mode, 1)
        for (count, begin), budget in zip(starts.items(), self._budgets(starts), strict=True):
            strategy = self._search(None, begin, default, count, budget)
            self._report("network", 0)
            rewired = self._pricing.wired(strategy, self._options.mode, count)
            self._finish_round(rewired, rewired)

    def _alternate(self) -> None:
        """Rounds of search and rewiring, beginning on the network for data parallelism, or on that
        of one of the starts."""
        starts = self._problems.of_each_count(self._problems.starts)
        all_servers = everywhere(self._op_graph, self._cluster.servers)
        default = self._pricing.wire(all_servers, self._options.first_mode, 1)
        if self._options.micro_batches == "auto":
            starts = self._promising(starts, default)
        networks = dict.fromkeys(starts, default)
        for count, begin in starts.items():
            first = first_pair(self._problems, self._pricing, default, begin, count)
            if first is not None:
                networks[count] = first.network
                starts[count] = tuple(dict.fromkeys((first.strategy, *begin)))
        self._alternate_from(networks, starts, self._options.first_mode)
        if self._options.mode == "best" and self._options.network is None:
            assert self._best is not None
            so_far = self._best, tuple(self._rounds), tuple(self._samples)
            self._of_mode_paper = partial(self._plan_of, self._pricing, "paper", *so_far)
            best, count = self._best.strategy, self._best.micro_batches
            self._price_schedules()
            starts = {count: tuple(dict.fromkeys((best, *starts[count])))}
            strategy = all_servers if self._options.ablation == "search-only" else best
            networks = {count: self._pricing.wire(strategy, "best", count)}
            self._alternate_from(networks, starts, "best")

    def _alternate_from(
        self, networks: Mapping[int, Network], starts: Starts, mode: WiringMode
    ) -> None:
        """Rounds that begin with searches on `networks`, until one gains little.

        The first tries every number of micro-batches of `starts`, the others that of the best. A
        round searches on the network of the best pair, or, once that is done, on the last one wired
        unless it is much worse: another strategy may be better there. On few servers, every second
        chain of later rounds starts from the first round's starts, because chains that start from
        the best return to it. The last round ends with a descent from the best pair.
        """
        rewires = self._options.ablation != "search-only"
        few = few_servers(self._cluster.servers)
        begun_at = self._begun_at = {**self._begun_at, **starts}
        failures = 0  # consecutive rounds with little gain
        searched: list[Network] = []
        wired_for: dict[int, Network] = {}  # by number of micro-batches, as `networks`
        wired_s: dict[int, float] = {}
        for turn in range(1, self._most_rounds + 1):
            before_s = self._best_s
            for (count, begin), budget in zip(starts.items(), self._budgets(starts), strict=True):
                network = networks[count]
                searched.append(network)
                others = begun_at[count] if few and turn > 1 else ()
                strategy = self._search(network, begin, network, count, budget, others)
                rewired = found = self._pricing.price(strategy, network, count)
                if rewires:
                    self._report("network", 0)
                    rewired = self._rewired(found.strategy, mode, count)
                    wired_for[count] = rewired.network
                    wired_s[count] = rewired.iteration_s
                self._finish_round(found, rewired)
            assert self._best is not None
            best, count = self._best.strategy, self._best.micro_batches
            failures = 0 if self._best_s < before_s * (1 - CONVERGED) else failures + 1
            gained = failures <= (_FAILURES_ON_FEW if few else 0)
            following = self._best.network if gained else None
            if rewires:
                wired = wired_for[count], wired_s[count]
                following = self._next_network(searched, wired, gained)
            if turn == self._most_rounds or failures > self._effort.failures:
                following = None
            if following is None:
                self._descend({**begun_at, **starts}, mode if rewires else None)
            self._round += 1
            self._proposed_before = self._proposed
            if following is None:
                break
            networks = {count: following}
            starts = {count: tuple(dict.fromkeys((best, *starts[count])))}

    def _descend(self, starts: Starts, mode: WiringMode | None) -> None:
        """Descends from the best pairs; the gain is credited to the last round."""
        assert self._best is not None
        done = self._proposed - self._proposed_before
        report = partial(self._report, "search", done)
        descents = Descents(
            *(self._problems, self._pricing, self._evaluations, report),
            effort=self._effort,
        )
        pair = descents.best(self._best, self._pairs, starts, mode)
        if pair.iteration_s < self._best_s:
            self._rounds.pop()
            _, rewired = self._of_rounds.pop()
            self._finish_round(pair, rewired)

    @property
    def _effort(self) -> Effort:
        """The limits of the descents; mode paper has none."""
        if not (self._large and self._options.prices_schedules):
            return UNLIMITED
        return LARGE_ON_SCHEDULES if self._pricing.schedules else LARGE_ON_RINGS

    def _next_network(
        self, searched: list[Network], wired: tuple[Network, float], gained: bool
    ) -> Network | None:
        """The network of the next round's search, with its time; None ends the rounds.

        It is the network of the best pair, then the last one wired. If that is much slower, the
        best one is searched once more, and again as long as rounds gain.
        """
        assert self._best is not None
        best = self._best.network
        network, seconds = wired
        if best not in searched:
            return best
        if network in searched:
            return best if gained else None
        if seconds <= self._best_s * (1 + _MUCH_SLOWER):
            return network
        searched.append(network)
        return best

    def _rewired(self, strategy: Strategy, mode: WiringMode, count: int) -> PricedPair:
        """The fastest of `strategy` and of the other candidates of its search, each on the network
        wired for it.

        A slightly slower strategy on this network is often the fastest on its own.
        """
        others = [s for s in self._candidates if s != strategy]
        if self._options.network is not None:  # `strategy` is the fastest on it already
            others = []
        pairs = [self._pricing.wired(s, mode, count) for s in (strategy, *others[: _WIRED_FOR - 1])]
        return min(pairs, key=lambda pair: pair.iteration_s)

    def _result(self) -> Plan:
        """The Plan of the best pair."""
        assert self._best is not None
        mode = str(self._options.mode) if self._options.network is None else "fixed"
        return self._plan_of(
            self._pricing, mode, self._best, tuple(self._rounds), tuple(self._samples)
        )

    def _plan_of(
        self,
        pricing: PairPricing,
        mode: str,
        best: PricedPair,
        rounds: tuple[Round, ...],
        samples: tuple[SearchSample, ...],
    ) -> Plan:
        """The Plan of the pair `best`, which these rounds have found."""
        options = self._options
        traffic = demand(self._op_graph, best.strategy, self._cluster.servers)
        prediction = pricing.prediction(best)
        if not pricing.schedules:  # which put other bytes on links than rings do
            validate_link_bytes(self._cluster.servers, best.network, traffic, prediction.link_bytes)
        return Plan(
            version=Plan.WITHOUT_LAYOUT,
            model=self._op_graph.model,
            batch_size=self._op_graph.batch_size,
            seed=options.seed,
            mode=mode,
            routing=str(options.routing) if options.network is None else "shortest",
            strategy_space="full" if options.strategy_space == "all" else options.strategy_space,
            cluster=self._cluster,
            network=best.network,
            demand=traffic,
            prediction=prediction,
            rounds=rounds,
            search=samples,
            strategy=best.strategy,
            micro_batches=best.micro_batches,
        ).validate()

    @property
    def _best_s(self) -> float:
        return self._best.iteration_s if self._best else math.inf

    def _promising(self, starts: Starts, network: Network) -> Starts:
        """One micro-batch, and the numbers whose best start is nearly as fast as any on `network`:
        a search of the others would not catch up."""
        seconds = {
            count: min(self._pricing.price(start, network, count).iteration_s for start in begin)
            for count, begin in starts.items()
        }
        limit_s = min(seconds.values()) * (1 + _NEARLY)
        several = sorted((s, count) for count, s in seconds.items() if count > 1 and s <= limit_s)
        kept = {1, *(count for _, count in several[:_MOST_COUNTS])}
        return {count: begin for count, begin in starts.items() if count in kept}

    def _budgets(self, starts: Starts) -> list[int]:
        """A round's proposals, divided among the numbers of micro-batches. With "auto", one
        micro-batch has as many as alone, and the others share as many."""
        if self._options.micro_batches != "auto" or 1 not in starts:
            return budgets(self._evaluations, len(starts))
        others = iter(budgets(self._evaluations, len(starts) - 1)) if len(starts) > 1 else iter(())
        return [self._evaluations if count == 1 else next(others) for count in starts]

    def _search(
        self,
        network: Network | None,
        starts: tuple[Strategy, ...],
        fallback: Network,
        count: int,
        budget: int,
        others: tuple[Strategy, ...] = (),
    ) -> Strategy:
        """The best strategy found on `network`, with `count` micro-batches and `budget` proposals.

        Every second chain begins at `others`, if there are any, and at experts' strategies. On
        interruption, `fallback` has the best one so far.
        """
        experts = self._problems.experts(network, starts, count)
        starts = tuple(dict.fromkeys((*starts, *experts)))
        others = tuple(dict.fromkeys((*others, *experts))) if others else ()
        search = TwoLevelSearch(
            self._problems.problem(network, starts, count).with_other_starts(others),
            seed=self._options.seed + len(self._rounds) * 0x9E3779B97F4A7C15,
            options=self._options.search,
        )
        self._searching = search, fallback, count
        done = self._proposed
        due = 0

        def record(now: ChainProgress) -> None:
            nonlocal due
            self._curve_s = min(self._curve_s, now.best_s)
            if now.evaluations >= due:
                due = budget + 1
                if now.evaluations < budget:
                    due = min(now.evaluations + max(1, budget // _CURVE_POINTS), budget)
                best_s = rounded(self._curve_s)
                current_s = max(best_s, rounded(now.current_s))
                self._samples.append(SearchSample(done + now.evaluations, current_s, best_s))
            self._report("search", done - self._proposed_before + now.evaluations, now)

        record(search.result().progress())
        strategy = search.run(budget, record)
        self._searching = None
        result = search.result()
        self._candidates = [candidate.strategy for candidate in result.candidates]
        self._large = self._large or result.steps_simulated > LARGE_STEPS
        self._proposed += budget
        return strategy

    def _report(
        self,
        stage: Literal["search", "network"],
        evaluations: int,
        now: ChainProgress | None = None,
    ) -> None:
        if self._on_progress is None:
            return
        options = self._options
        best_s = min(self._curve_s, self._best_s)
        self._on_progress(
            PlanProgress(
                stage=stage,
                round=self._round,
                rounds=self._most_rounds * (2 if options.mode == "best" else 1),
                evaluations=evaluations,
                budget=self._evaluations,
                accepted=0 if now is None else now.accepted,
                current_s=max(best_s, best_s if now is None else now.current_s),
                best_s=best_s,
            )
        )

    def _finish_round(self, found: PricedPair, rewired: PricedPair) -> None:
        """Records the round, and keeps the better of the two pairs if it is the best so far."""
        cost_s = rewired.iteration_s
        better = rewired if cost_s <= found.iteration_s else found
        accepted = better.iteration_s < self._best_s
        if accepted:
            self._best = better
        if few_servers(self._cluster.servers):  # the others are not used again
            self._pairs.append(better)
        if self._pricing.schedules or not self._options.prices_schedules:
            self._of_rounds.clear()
        self._of_rounds.append((found, rewired))
        ring_s, switch_s = self._pricing.references(found)
        self._rounds.append(
            Round(
                strategy_s=rounded(found.iteration_s),
                network_s=rounded(rewired.iteration_s),
                single_ring_s=ring_s,
                ideal_switch_s=switch_s,
                accepted=accepted,
                micro_batches=found.micro_batches,
            )
        )
