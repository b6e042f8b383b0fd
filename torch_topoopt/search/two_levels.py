"""The strategy search: many proposals by the coarse simulator, the best of them at flow level.

The coarse simulator ranks strategies well and prices thousands a second; a plan is judged at flow
level. So chains at the coarse level find candidates, and a short chain at flow level starts from
the best of them and decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.search.chains import ChainProgress, ChainResult, ThreadedChains
from torch_topoopt.search.defaults import DEFAULT_CHAINS, times_on_few
from torch_topoopt.search.mcmc import StrategySearch
from torch_topoopt.search.ray_chains import RayChains

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

CANDIDATES = 8  # of the chains, priced at flow level
_REFINING_TASKS = 300_000  # of flow-level simulations: about a dozen strategies of DLRM
_MOST_TIMES = 3  # factor on few servers, where a strategy has fewer tasks
_REFINING_EVALUATIONS = 2_000
_REFINING_BETA = 2_000.0  # accepts hardly any slowdown
_REFINING_SLACK = 0.01  # the two levels differ by less between similar strategies
_REFINING_SLICE = 2


@dataclass(frozen=True)
class SearchOptions:
    """How chains run: their number, and the Ray cluster (None: in `workers` threads, by default
    one per processor)."""

    chains: int = DEFAULT_CHAINS
    workers: int | None = None
    ray: str | None = None


class TwoLevelSearch:
    """One search. `best` is the best strategy so far."""

    def __init__(
        self, problem: SearchProblem, *, seed: int = 0, options: SearchOptions | None = None
    ) -> None:
        """Raises ValueError as ThreadedChains and RayChains do."""
        options = options or SearchOptions()
        self._problem = problem
        self._seed = seed
        self._chains: ThreadedChains | RayChains
        if options.ray is None:
            self._chains = ThreadedChains(
                problem, seed=seed, chains=options.chains, workers=options.workers
            )
        else:
            self._chains = RayChains(problem, address=options.ray, seed=seed, chains=options.chains)
        self._refined: StrategySearch | None = None

    def run(
        self, evaluations: int, on_progress: Callable[[ChainProgress], None] | None = None
    ) -> Strategy:
        """`evaluations` by the coarse simulator, and a few at flow level; returns the best.

        An exception of the callback ends the search, as Ctrl-C does.
        """
        result = self._chains.run(evaluations, on_progress)
        self._refine(result, evaluations, on_progress)
        return self.best()

    def result(self) -> ChainResult:
        """The results of the chains so far; times are those of the coarse simulator."""
        return self._chains.result()

    def best(self) -> Strategy:
        """The best so far: at flow level once that has begun, else by the coarse simulator."""
        if self._refined is not None:
            return self._refined.best()
        return self._chains.result().candidates[0].strategy

    def _refine(
        self,
        result: ChainResult,
        evaluations: int,
        on_progress: Callable[[ChainProgress], None] | None,
    ) -> None:
        found = [candidate.strategy for candidate in result.candidates[:CANDIDATES]]
        starts = tuple(dict.fromkeys((*found, *self._problem.starts)))
        problem = self._problem.changed(self._problem.network, starts)
        chain = StrategySearch(
            problem.colder(_REFINING_BETA), seed=self._seed, slack=_REFINING_SLACK
        )
        self._refined = chain
        times = times_on_few(self._problem.cluster.servers, _MOST_TIMES)
        most_tasks = chain.tasks + times * _REFINING_TASKS
        left = min(evaluations, _REFINING_EVALUATIONS)
        while left > 0 and chain.tasks < most_tasks:
            chain.step(min(_REFINING_SLICE, left))
            left -= _REFINING_SLICE
            if on_progress is not None:
                on_progress(result.progress())
