"""The last step of planning: downhill at flow level, until no change of the strategy helps.

Chains end in the valley that the coarse simulator likes most. The flow level may see a way out of
it: one change among a thousand, which chance does not find where a strategy takes milliseconds. So
changes are tried in turn; operators that cost the same and are split the same way count once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

_MOST_TASKS = 20_000_000  # of flow-level simulations
_TASKS = 1_280_000_000  # divided by the square of the servers: so many changes, and each so dear
_SLACK = 0.05  # the two levels differ by less between strategies that are split otherwise
_SLICE = 10  # changes between two looks at Ctrl-C


def descend(
    problem: SearchProblem,
    evaluations: int,
    on_step: Callable[[], None] = lambda: None,
    *,
    slack: float = _SLACK,
) -> Strategy:
    """From the first start of `problem` downhill, by at most `evaluations` changes.

    A change is refused unpriced where the coarse simulator finds it slower than the strategy at
    hand by more than the fraction `slack`. Ends early where many servers make simulations dear.
    What `on_step`, called between changes, raises ends it.

    Raises ValueError where the start does not fit into memory, and as SearchProblem.lowered does.
    """
    lowered = problem.lowered(0)
    descent = _core.Descent(
        job=lowered["job"],
        network=lowered["network"],
        space=lowered["space"],
        start=lowered["starts"][0],
        memory_limit_bytes=lowered["memory_limit_bytes"],
        max_transfers=lowered["max_transfers"],
        **problem.priced(),
        slack=slack,
    )
    most_tasks = descent.tasks + min(_MOST_TASKS, _TASKS // problem.cluster.servers**2)
    while (left := evaluations - descent.evaluations) > 0:
        if descent.done or descent.tasks >= most_tasks:
            break
        descent.step(min(_SLICE, left))
        on_step()
    return problem.named(descent.best())
