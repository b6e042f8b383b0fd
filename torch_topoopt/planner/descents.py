"""The end of the last round: descents from the best pairs, at flow level."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch_topoopt.planner.effort import UNLIMITED
from torch_topoopt.search.defaults import few_servers
from torch_topoopt.search.descent import TaskBudget, descend, descend_by_blocks
from torch_topoopt.search.last_changes import exchanged_servers, other_boundaries
from torch_topoopt.search.starts.as_in_starts import as_in_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.planner.effort import Effort
    from torch_topoopt.planner.pricing import PairPricing, PricedPair, WiringMode
    from torch_topoopt.planner.search_problems import SearchProblems, Starts
    from torch_topoopt.search.strategies import Strategy

_DESCENTS = 4  # from the best pairs of all rounds, on few servers
_CATCHES_UP = 1.25  # times the best: a descent from such a pair may end below it
_WIRED = 4  # strategies with exchanged servers or other boundaries: wiring is slower than pricing
_LARGEST_THOROUGH = 2048  # operators times servers
_GAIN = 1e-4  # least relative gain of the last changes, as of a descent


class Descents:
    """Descents of the strategies of `problems`, by at most `evaluations` changes each, within the
    limits of `effort` for all of them.

    With automatic numbers of micro-batches, all descents of small problems end with further
    changes.
    The paper's space, with one micro-batch, has one descent.
    """

    def __init__(
        self,
        problems: SearchProblems,
        pricing: PairPricing,
        evaluations: int,
        on_step: Callable[[], None],
        *,
        effort: Effort = UNLIMITED,
    ) -> None:
        self._problems = problems
        self._pricing = pricing
        self._evaluations = evaluations
        self._on_step = on_step
        self._effort = effort
        self._budget = TaskBudget(effort.tasks)
        self._few = few_servers(problems.cluster.servers) and evaluations > 0
        size = problems.cluster.servers * len(problems.op_graph.operators)
        auto = problems.options.micro_batches == "auto"
        self._thorough = self._few and auto and size <= _LARGEST_THOROUGH

    def best(
        self,
        best: PricedPair,
        pairs: Sequence[PricedPair],
        starts: Starts,
        mode: WiringMode | None,
    ) -> PricedPair:
        """The best end of descents from `best` and, on few servers, from `pairs` of all rounds.

        With a `mode`, results are wired again.
        """
        if self._budget.left <= 0:
            return best
        pairs = [p for p in pairs if p.iteration_s <= best.iteration_s * (1 + self._effort.near)]
        begins = self._by_blocks(best, pairs) if self._few else [best]
        if self._budget.left < math.inf:  # the best ones before it is spent
            begins.sort(key=_seconds)
        ends: list[PricedPair] = []
        for end in begins:
            if ends and self._budget.left <= 0:
                break
            before_s = math.inf
            while end.iteration_s < before_s * (1 - _GAIN):
                before_s = end.iteration_s if self._thorough and self._budget.left > 0 else 0.0
                end = self._descended(end, best, starts, mode)
            ends.append(end)
        return min(ends, key=_seconds)

    def _by_blocks(self, best: PricedPair, pairs: Sequence[PricedPair]) -> list[PricedPair]:
        """The best of the descents by blocks, which often end in different local minima; all of
        them if these are thorough."""
        ordered = (best, *sorted(pairs, key=_seconds))
        chosen = {(pair.strategy, pair.micro_batches): pair for pair in reversed(ordered)}
        near = sorted(chosen.values(), key=_seconds)
        if self._thorough:  # the best of each number of micro-batches comes first
            near = [pair for pair in near if pair.iteration_s <= best.iteration_s * _CATCHES_UP]
            of_count = {pair.micro_batches: pair for pair in reversed(near)}
            near.sort(key=lambda pair: pair is not of_count[pair.micro_batches])
        near = near[:_DESCENTS]
        found = descend_by_blocks(
            [
                self._problems.problem(None, (pair.strategy,), pair.micro_batches).changed(
                    self._problems.lowered.lower(pair.network), (pair.strategy,)
                )
                for pair in near
            ],
            self._evaluations,
            self._on_step,
            workers=self._problems.options.search.workers,
            budget=self._budget,
        )
        ends = [
            self._pricing.price(strategy, pair.network, pair.micro_batches)
            for strategy, pair in zip(found, near, strict=True)
        ]
        if self._thorough:
            return list({(p.strategy, p.micro_batches): p for p in (best, *ends)}.values())
        return [min((best, *ends), key=_seconds)]

    def _descended(
        self, begin: PricedPair, best: PricedPair, starts: Starts, mode: WiringMode | None
    ) -> PricedPair:
        """`begin` after a descent on its network. Then places all operators of a kind as in one of
        `starts` where that is faster, there or, with a `mode`, on a network wired for it."""
        network, count = begin.network, begin.micro_batches
        problem = self._problems.problem(network, (begin.strategy,), count)
        strategy = descend(problem, self._evaluations, self._on_step, budget=self._budget)
        pair = self._pricing.price(strategy, network, count)
        placed: tuple[Strategy, ...] = ()
        if self._evaluations:
            placed = as_in_starts(problem, strategy, starts[count])
        for other in placed:
            pair = faster(pair, self._pricing.price(other, network, count))
        if self._thorough and self._budget.left > 0:
            pair = self._with_last_changes(pair, mode)
        before = best.strategy if few_servers(self._problems.cluster.servers) else strategy
        if pair.strategy != before and mode is not None:
            pair = faster(pair, self._pricing.wired(pair.strategy, mode, count))
        return pair

    def _with_last_changes(self, pair: PricedPair, mode: WiringMode | None) -> PricedPair:
        """`pair` with other boundaries of stages, or with two servers exchanged and, with a `mode`,
        wired again, as long as these gain. Mode best makes both changes at once, too."""
        count, gains = pair.micro_batches, True
        while gains:
            before_s = pair.iteration_s
            network = pair.network
            problem = self._problems.problem(network, (pair.strategy,), count)
            boundaries = [
                self._pricing.price(other, network, count)
                for other in other_boundaries(problem, pair.strategy)
            ]
            near = sorted((pair, *boundaries), key=_seconds)[:_WIRED]
            pair = near[0]
            exchanged = [
                self._pricing.price(other, network, count)
                for other in exchanged_servers(problem, pair.strategy)
            ]
            exchanged.sort(key=_seconds)
            pair = min((pair, *exchanged[:1]), key=_seconds)
            others = [one.strategy for one in exchanged[:_WIRED]]
            if mode == "best":  # mode paper is fast, and depends more on the order of servers
                others = [o for one in near for o in exchanged_servers(problem, one.strategy)]
            if mode is None:
                others = []
            for other in others:
                wired = self._pricing.wired(other, self._problems.options.first_mode, count)
                pair = faster(pair, wired)
                self._on_step()
            gains = pair.iteration_s < before_s * (1 - _GAIN)
        return pair


def faster(pair: PricedPair, other: PricedPair) -> PricedPair:
    """The one that takes less time."""
    return min(pair, other, key=_seconds)


def _seconds(pair: PricedPair) -> float:
    return pair.iteration_s
