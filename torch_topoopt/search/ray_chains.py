"""Chains as tasks of a Ray cluster (docs.ray.io); needs `pip install 'ray>=2.50'`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_topoopt.search.chains import (
    Chain,
    ChainProgress,
    ChainResult,
    budgets,
    merged,
)
from torch_topoopt.search.defaults import DEFAULT_CHAINS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.search.problem import SearchProblem

_LOOK_S = 0.2  # between two checks for Ctrl-C


def import_ray() -> Any:
    """The module; raises ValueError with the install command if it is missing."""
    try:
        import ray
    except ImportError:
        raise ValueError(
            "ray: the package ray is not installed; `pip install 'ray>=2.50'`, or leave "
            "the option out to search in threads"
        ) from None
    return ray


def connect(address: str) -> None:
    """Connects to the Ray cluster at `address` ("auto": the one that runs on this machine).

    Keeps an existing connection of the process. Raises ValueError where there is no cluster.
    """
    ray = import_ray()
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"ray: no Ray cluster at {address!r} ({reason[0] if reason else error!r}); start one "
            "with `ray start --head`"
        ) from None


def run_chain(problem: SearchProblem, seed: int, number: int, evaluations: int) -> ChainResult:
    """The work of one task: a whole chain."""
    chain = Chain(problem, seed, number)
    chain.cool(evaluations)
    chain.step(evaluations)
    return chain.result()


class RayChains:
    """As ThreadedChains, on the machines of a Ray cluster; a chain reports when it ends."""

    def __init__(
        self,
        problem: SearchProblem,
        *,
        address: str,
        seed: int = 0,
        chains: int = DEFAULT_CHAINS,
    ) -> None:
        """Raises ValueError as `connect` does, for no chains, and for a bad problem."""
        if chains < 1:
            raise ValueError(f"chains: must be at least 1 (got {chains})")
        self._first = Chain(problem, seed, 0).result()  # raises here if the problem is bad
        connect(address)
        self._problem = problem
        self._seed = seed
        self._count = chains
        self._results: dict[int, ChainResult] = {}

    def run(
        self, evaluations: int, on_progress: Callable[[ChainProgress], None] | None = None
    ) -> ChainResult:
        """Makes that many evaluations in all; calls back now and then.

        An exception of the callback ends the run and its tasks, as Ctrl-C does; `result` then has
        the finished chains only.
        """
        ray = import_ray()
        task = ray.remote(run_chain)
        shares = budgets(evaluations, self._count)
        problem = ray.put(replace(self._problem))  # drops the caches, which do not pickle
        waiting = {
            task.remote(problem, self._seed, number, share): number
            for number, share in enumerate(shares)
        }
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=_LOOK_S)
                for reference in done:
                    number = waiting.pop(reference)
                    self._results[number] = ray.get(reference)
                if on_progress is not None:
                    on_progress(self.result().progress())
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)
        return self.result()

    def result(self) -> ChainResult:
        """The results of the finished chains; the start where there is none."""
        if not self._results:
            return self._first
        return merged([self._results[number] for number in sorted(self._results)])
