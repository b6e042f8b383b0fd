"""One Markov chain over strategies at flow level; it refines the results of `chains`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import SearchSample

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

_SLICE = 20  # evaluations between two checks for Ctrl-C


class StrategySearch:
    """One chain on one network. It holds no thread or process, so it needs no closing."""

    def __init__(self, problem: SearchProblem, *, seed: int = 0, slack: float = math.inf) -> None:
        """Starts at the cheapest start that fits into memory.

        Strategies that the coarse simulator finds slower by more than the fraction `slack` are
        rejected without a simulation here (delayed acceptance, Christen and Fox 2005).

        Raises ValueError for a `beta` that is not above 0, a negative `slack`, if no start fits,
        and as SearchProblem.lowered does.
        """
        self._problem = problem
        self._core = _core.StrategySearch(
            **problem.lowered(seed), prices=problem.iteration_prices, slack=slack
        )

    def step(self, evaluations: int) -> SearchSample:
        """Judges that many proposals, without the interpreter lock; returns the chain's state."""
        self._core.step(evaluations)
        return self.sample()

    def run(
        self, evaluations: int, on_sample: Callable[[SearchSample], None] | None = None
    ) -> SearchSample:
        """Runs in short slices, so that Ctrl-C ends it between two; calls back after each."""
        left = evaluations
        while left > 0:
            sample = self.step(min(_SLICE, left))
            left -= _SLICE
            if on_sample is not None:
                on_sample(sample)
        return self.sample()

    def sample(self) -> SearchSample:
        """The present state of the chain."""
        core = self._core
        return SearchSample(core.evaluations, core.current_s, core.best_s)

    @property
    def accepted(self) -> int:
        """Proposals accepted so far."""
        return self._core.accepted

    @property
    def simulations(self) -> int:
        """Strategies simulated so far; the others were cached, unchanged, screened or too large."""
        return self._core.simulations

    @property
    def tasks(self) -> int:
        """Simulation tasks of all strategies priced so far, cached ones included."""
        return self._core.tasks

    def best(self) -> Strategy:
        """The cheapest strategy seen."""
        return self._problem.named(self._core.best())
