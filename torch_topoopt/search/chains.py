"""Several Markov chains side by side, priced by the coarse simulator (csrc/search).

FlexFlow's search (Jia et al. 2019; paper section 4.1, the Computation x Communication plane)
proposes another placement for an operator, propagates one along edges of the graph, swaps two, or
moves a run of operators. It simulates the change and accepts by Metropolis' rule against the
current strategy; the energy is the relative change of the predicted time. Chains cool down over
their budget. Each is seeded by its number and they share nothing, so the result depends on the
number of chains, not of threads or machines.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.search.defaults import DEFAULT_CHAINS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

_SLICE = 500  # evaluations of a chain between two checks for Ctrl-C
_SPREAD = 0xBF58476D1CE4E5B9  # keeps the seeds of chains apart; an odd number
# Initial beta of each chain, as a fraction of the problem's, repeated. Hot chains find gains that
# need several changes at once; on large models they cost a little.
_INITIAL_TEMPERATURE = (1.0, 0.2, 1.0, 0.04)
_COOLING = 1000.0  # beta at the end of a search, as a multiple of that at its beginning
_KEPT = 8  # strategies that chains hand over, together


@dataclass(frozen=True)
class Candidate:
    """A strategy and its time by the coarse simulator."""

    seconds: float
    strategy: Strategy


@dataclass(frozen=True)
class ChainProgress:
    """The state of chains: proposals judged and accepted, the least current and the best time."""

    evaluations: int
    accepted: int
    current_s: float
    best_s: float


@dataclass(frozen=True)
class ChainResult:
    """The result of a chain, or several together. Candidates are in ascending order of time.

    `simulations` counts the evaluations that were simulated; the others changed nothing, did not
    fit into memory, or overload a server or a link. `full_steps` are the steps of simulating each
    fitting change from start to end; `steps_simulated` of them were simulated.
    """

    candidates: tuple[Candidate, ...]
    current_s: float
    evaluations: int
    accepted: int
    simulations: int
    steps_simulated: int
    full_steps: int

    def progress(self) -> ChainProgress:
        """Its final state."""
        return ChainProgress(
            self.evaluations, self.accepted, self.current_s, self.candidates[0].seconds
        )


class Chain:
    """One of the chains of `problem`, numbered from 0."""

    def __init__(self, problem: SearchProblem, seed: int, number: int) -> None:
        if problem.other_starts and number % 2:
            problem = problem.changed(problem.network, problem.other_starts)
        self._problem = problem
        arguments = problem.lowered(seed + number * _SPREAD)
        arguments["beta"] *= _INITIAL_TEMPERATURE[number % len(_INITIAL_TEMPERATURE)]
        self._core = _core.CoarseChain(**arguments)

    def cool(self, evaluations: int) -> None:
        """Cools over the next proposals: beta grows a thousandfold, geometrically."""
        self._core.cool(evaluations, _COOLING)

    def step(self, evaluations: int) -> None:
        """Judges that many proposals, without the interpreter lock."""
        self._core.step(evaluations)

    def simulate_fully(self) -> None:
        """Simulates every later proposal from start to end; the chain takes the same path."""
        self._core.simulate_fully()

    def progress(self) -> ChainProgress:
        """Its present state."""
        core = self._core
        return ChainProgress(core.evaluations, core.accepted, core.current_s, core.best_s)

    def result(self) -> ChainResult:
        """Its result so far."""
        core = self._core
        candidates = tuple(
            Candidate(seconds, self._problem.named(strategy))
            for seconds, strategy in core.best(_KEPT)
        )
        return ChainResult(
            candidates,
            core.current_s,
            core.evaluations,
            core.accepted,
            core.simulations,
            core.steps_simulated,
            core.full_steps,
        )


def budgets(evaluations: int, chains: int) -> list[int]:
    """The number of `evaluations` of each chain."""
    return [evaluations // chains + (i < evaluations % chains) for i in range(chains)]


class ThreadedChains:
    """Chains in threads of this process."""

    def __init__(
        self,
        problem: SearchProblem,
        *,
        seed: int = 0,
        chains: int = DEFAULT_CHAINS,
        workers: int | None = None,
    ) -> None:
        """`workers` threads (default: one per processor that this process may use).

        Raises ValueError for no chains or workers, and as SearchProblem.lowered and the core do.
        """
        if chains < 1:
            raise ValueError(f"chains: must be at least 1 (got {chains})")
        if workers is not None and workers < 1:
            raise ValueError(f"workers: must be at least 1 (got {workers})")
        self._chains = [Chain(problem, seed, number) for number in range(chains)]
        self._workers = min(chains, workers or len(os.sched_getaffinity(0)))

    def run(
        self, evaluations: int, on_progress: Callable[[ChainProgress], None] | None = None
    ) -> ChainResult:
        """Makes that many evaluations in all, in short slices; calls back between two.

        The chains cool down over them. An exception of the callback ends the run, as Ctrl-C does;
        `result` then holds the best found so far.
        """
        left = budgets(evaluations, len(self._chains))
        for chain, budget in zip(self._chains, left, strict=True):
            chain.cool(budget)
        with ThreadPoolExecutor(self._workers) as pool:
            while any(left):
                slices = [min(_SLICE, budget) for budget in left]
                list(pool.map(Chain.step, self._chains, slices))
                left = [budget - done for budget, done in zip(left, slices, strict=True)]
                if on_progress is not None:
                    on_progress(self.progress())
        return self.result()

    def progress(self) -> ChainProgress:
        """The result of all chains together."""
        return together([chain.progress() for chain in self._chains])

    def result(self) -> ChainResult:
        """The results of all chains so far."""
        return merged([chain.result() for chain in self._chains])


def together(chains: Sequence[ChainProgress]) -> ChainProgress:
    """The state of several chains."""
    return ChainProgress(
        sum(chain.evaluations for chain in chains),
        sum(chain.accepted for chain in chains),
        min(chain.current_s for chain in chains),
        min(chain.best_s for chain in chains),
    )


def merged(results: Sequence[ChainResult]) -> ChainResult:
    """Results of several chains as one, with the best candidates of each.

    Candidates of one chain are alike, and another simulator may prefer those of other chains.
    """
    best: dict[Strategy, float] = {}
    for result in results:
        for candidate in result.candidates[: -(-_KEPT // len(results))]:
            best.setdefault(candidate.strategy, candidate.seconds)
    candidates = sorted((Candidate(s, strategy) for strategy, s in best.items()), key=_seconds)
    return ChainResult(
        tuple(candidates),
        min(result.current_s for result in results),
        sum(result.evaluations for result in results),
        sum(result.accepted for result in results),
        sum(result.simulations for result in results),
        sum(result.steps_simulated for result in results),
        sum(result.full_steps for result in results),
    )


def _seconds(candidate: Candidate) -> float:
    return candidate.seconds
