"""The first network of a planning, where one is faster than that for data parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.planner.options import CONVERGED
from torch_topoopt.search.starts.experts import experts_below, layer_runs_below
from torch_topoopt.search.strategies import everywhere

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.plan import Network
    from torch_topoopt.planner.pricing import PairPricing, PricedPair
    from torch_topoopt.planner.search_problems import SearchProblems
    from torch_topoopt.search.strategies import Strategy

_WIRED_FOR = 3  # starts that get a first network
_EXPERTS_WIRED_FOR = 8  # experts' strategies, where these may gain as much as
_RUNS_WIRED_FOR = 4  # layers in runs: fast on an ideal switch, seldom on another network
_WORTH_WIRING = 0.05


def first_pair(
    problems: SearchProblems,
    pricing: PairPricing,
    default: Network,
    starts: tuple[Strategy, ...],
    count: int,
) -> PricedPair | None:
    """A start, or an expert's strategy, on a network of its own; None where the fastest start
    on `default` is as fast.

    A strategy that splits parameters may be slow on a network without its groups and pairs, and no
    single change of it makes up for that. Only the fastest on an ideal switch get a network, since
    no network is faster than that.
    """
    options = problems.options
    if options.network is not None or options.ablation == "search-only":
        return None
    servers = problems.cluster.servers
    best_s = min(
        pricing.price(start, default, count).iteration_s
        for start in (*starts, *problems.experts(default, starts, count))
    )
    first: PricedPair | None = None

    def try_on_its_own(strategies: Iterable[Strategy]) -> None:
        nonlocal best_s, first
        for strategy in strategies:
            pair = pricing.wired(strategy, options.first_mode, count)
            if pair.iteration_s < best_s * (1 - CONVERGED):
                best_s, first = pair.iteration_s, pair

    others = [start for start in starts if start != everywhere(problems.op_graph, servers)]
    fastest = sorted(others, key=lambda start: pricing.ideal_switch_s(start, count))
    try_on_its_own(fastest[:_WIRED_FOR])
    if options.strategy is None:
        problem = problems.problem(None, starts, count)
        limit_s = best_s * (1 - _WORTH_WIRING)
        if min(pricing.ideal_switch_s(start, count) for start in starts) < limit_s:
            found = experts_below(problem, limit_s, _EXPERTS_WIRED_FOR)
            try_on_its_own(strategy for strategy in found if strategy not in starts)
        best_s *= 1 - _WORTH_WIRING
        try_on_its_own(layer_runs_below(problem, best_s, _RUNS_WIRED_FOR))
    return first
