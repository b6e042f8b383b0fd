"""Changes of a strategy that a search seldom proposes: boundaries of stages, and exchanged servers.

A search moves an operator, or a random run of them. The balance of stages may need a certain run at
a boundary. Servers are not alike on a network whose cables differ in number: a pipeline whose
stages are in another order on them may be faster.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.search.starts.as_in_starts import fastest_near, legal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch_topoopt.plan import Placement
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

_LONGEST = 16  # operators that change their stage
_TRIED = 8  # boundaries
_MOST_EXCHANGES = 28  # all pairs of eight servers


def other_boundaries(problem: SearchProblem, strategy: Strategy) -> tuple[Strategy, ...]:
    """Up to eight strategies in which consecutive operators are placed as the one before or after
    them; the fastest by the coarse simulator. As `fastest_near`."""
    others = dict.fromkeys(_other_boundaries(strategy))
    return fastest_near(problem, strategy, _allowed(problem, strategy, others), _TRIED)


def exchanged_servers(problem: SearchProblem, strategy: Strategy) -> tuple[Strategy, ...]:
    """Strategies with two servers exchanged, of servers near each other first."""
    servers = range(problem.cluster.servers)
    pairs = sorted(itertools.combinations(servers, 2), key=lambda pair: pair[1] - pair[0])
    exchanged = (_exchanged(strategy, pair, list(servers)) for pair in pairs)
    others = dict.fromkeys(other for other in exchanged if other != strategy)
    return tuple(itertools.islice(_allowed(problem, strategy, others), _MOST_EXCHANGES))


def _allowed(
    problem: SearchProblem, strategy: Strategy, others: Iterable[Strategy]
) -> Iterator[Strategy]:
    for other in legal(problem, strategy, others):
        if problem.executable is None or all(map(problem.executable, other)):
            yield other


def _other_boundaries(strategy: Strategy) -> Iterator[Strategy]:
    """Consecutive operators placed as the one before or after them."""
    anonymous = [replace(placement, operator="") for placement in strategy]
    for at in range(1, len(strategy)):
        before, after = anonymous[at - 1 : at + 1]
        for length in range(1, _LONGEST + 1) if before != after else ():
            for like, begin, end in ((before, at, at + length), (after, at - length, at)):
                begin, end = max(0, begin), min(len(strategy), end)
                run = tuple(replace(like, operator=p.operator) for p in strategy[begin:end])
                yield (*strategy[:begin], *run, *strategy[end:])


def _exchanged(strategy: Strategy, pair: tuple[int, int], to: list[int]) -> Strategy:
    one, other = pair
    to[one], to[other] = other, one
    return tuple(_moved(placement, to) for placement in strategy)


def _moved(placement: Placement, to: list[int]) -> Placement:
    servers = tuple(to[server] for server in placement.servers)
    if len(servers) == placement.sample:  # equal shards
        servers = tuple(sorted(servers))
    return replace(placement, servers=servers)
