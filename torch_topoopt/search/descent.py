"""The last step of planning: a descent at flow level, until no change of the strategy helps.

Chains end in a local minimum of the coarse simulator, which a single change may leave at flow
level. At milliseconds per strategy, random proposals rarely find it, so changes are tried in turn.
Operators of equal cost that are split alike count once.
"""

from __future__ import annotations

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.search.defaults import LEVELS_SLACK, few_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

_MOST_TASKS = 20_000_000  # of flow-level simulations
# task budget, over servers squared: both the moves and the cost of simulating one grow with servers
_TASKS = 1_280_000_000
_BLOCK_SLACK = 0.015  # for blocks, of which there are many
_BLOCK_TASKS = 5_120_000_000  # as _TASKS; rules out blocks on 64 servers or more
_MOST_TURNS = 4  # of blocks and single changes
_BETWEEN_REPORTS_S = 0.2
_SLICE = 10  # changes between two checks for Ctrl-C


@dataclass
class TaskBudget:
    """The tasks of flow-level simulations `left` to several descents together."""

    left: float = math.inf


def descend(
    problem: SearchProblem,
    evaluations: int,
    on_step: Callable[[], None] = lambda: None,
    *,
    slack: float = LEVELS_SLACK,
    budget: TaskBudget | None = None,
) -> Strategy:
    """Descends from the first start of `problem`, by at most `evaluations` changes.

    A change moves one operator, all operators that are alike, or, on few servers, a block: some
    consecutive layers get the placements of others. A change is rejected without a flow-level
    simulation where the coarse simulator predicts a slowdown above the fraction `slack`. Ends early
    where many servers make simulations expensive, and with the `budget`. An exception of `on_step`,
    called between changes, ends it.

    Raises ValueError where the start does not fit into memory, and as SearchProblem.lowered does.
    """
    descent = _descent(problem)
    budget = budget or TaskBudget()

    def go(blocks: bool) -> bool:
        """Whether a change helped."""
        before_s = descent.best_s
        most_tasks = min(_most_tasks(problem, blocks=blocks), budget.left)
        begun = descent.tasks
        for _ in _steps(descent, evaluations, most_tasks, slack, blocks=blocks):
            on_step()
        budget.left -= descent.tasks - begun
        return descent.best_s < before_s

    go(blocks=False)
    for _ in range(_MOST_TURNS if few_servers(problem.cluster.servers) else 0):
        if not (go(blocks=True) and go(blocks=False)):
            break
    return problem.named(descent.best())


def descend_by_blocks(
    problems: Sequence[SearchProblem],
    evaluations: int,
    on_step: Callable[[], None] = lambda: None,
    *,
    workers: int | None = None,
    budget: TaskBudget | None = None,
) -> list[Strategy]:
    """Descends from the first start of each of `problems`, by blocks alone.

    `workers` (default: one per processor) descend at a time; no two problems may share a network
    of the core. They share the `budget` equally. Otherwise as `descend`.
    """
    budget = budget or TaskBudget()
    each = budget.left / max(1, len(problems))
    descents = [_descent(problem) for problem in problems]
    ends = threading.Event()

    def run(descent: _core.Descent, most_tasks: float) -> None:
        for _ in _steps(descent, evaluations, most_tasks, LEVELS_SLACK, blocks=True):
            if ends.is_set():
                return

    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        try:
            most_tasks = [min(_most_tasks(p, blocks=True), each) for p in problems]
            begun = sum(descent.tasks for descent in descents)
            left = {pool.submit(run, *one) for one in zip(descents, most_tasks, strict=True)}
            while left:
                done, left = wait(left, timeout=_BETWEEN_REPORTS_S)
                for one in done:
                    one.result()
                on_step()
        finally:
            ends.set()
    budget.left -= sum(descent.tasks for descent in descents) - begun
    return [p.named(descent.best()) for p, descent in zip(problems, descents, strict=True)]


def _descent(problem: SearchProblem) -> _core.Descent:
    lowered = problem.lowered(0)
    return _core.Descent(
        job=lowered["job"],
        network=lowered["network"],
        space=lowered["space"],
        start=lowered["starts"][0],
        memory_limit_bytes=lowered["memory_limit_bytes"],
        max_transfers=lowered["max_transfers"],
        prices=problem.iteration_prices,
    )


def _most_tasks(problem: SearchProblem, *, blocks: bool) -> int:
    """The task budget of one turn of a descent."""
    of_servers = (_BLOCK_TASKS if blocks else _TASKS) // problem.cluster.servers**2
    return min(_MOST_TASKS, of_servers)


def _steps(
    descent: _core.Descent, evaluations: int, most_tasks: float, slack: float, *, blocks: bool
) -> Iterator[None]:
    """Tries changes, or blocks, in slices, until none helps or `most_tasks` are simulated."""
    most_tasks += descent.tasks
    while not (descent.blocks_done if blocks else descent.done):
        now = min(_SLICE, evaluations - descent.evaluations)
        if descent.tasks >= most_tasks or now <= 0:
            return
        if blocks:
            descent.step_blocks(now, _BLOCK_SLACK)
        else:
            descent.step(now, slack)
        yield
