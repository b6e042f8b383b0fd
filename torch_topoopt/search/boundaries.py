"""Strategies in which the boundary between two stages of a pipeline lies elsewhere.

A search moves an operator, or a random run of them. The balance of stages may need a certain run:
every one at a boundary is tried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.search.starts.as_in_starts import fastest_near, legal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

_LONGEST = 16  # operators that change their stage
_TRIED = 8


def boundary_shifts(problem: SearchProblem, strategy: Strategy) -> tuple[Strategy, ...]:
    """Up to eight strategies in which some consecutive operators are placed as the one before or
    after them; the fastest by the coarse simulator. As `fastest_near`."""
    executable = problem.executable
    shifted = (
        other
        for other in dict.fromkeys(_shifted(strategy))
        if executable is None or all(map(executable, other))
    )
    return fastest_near(problem, strategy, legal(problem, shifted), _TRIED)


def _shifted(strategy: Strategy) -> Iterator[Strategy]:
    anonymous = [replace(placement, operator="") for placement in strategy]
    count = len(strategy)
    for at in range(1, count):
        if anonymous[at] == anonymous[at - 1]:
            continue
        for length in range(1, _LONGEST + 1):
            for like, begin, end in (
                (anonymous[at - 1], at, min(count, at + length)),
                (anonymous[at], max(0, at - length), at),
            ):
                run = tuple(replace(like, operator=p.operator) for p in strategy[begin:end])
                yield (*strategy[:begin], *run, *strategy[end:])
