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
    from collections.abc import Iterator

    from torch_topoopt.plan import Placement
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

_LONGEST = 16  # operators that change their stage
_TRIED = 8  # of each kind of change


def last_changes(problem: SearchProblem, strategy: Strategy) -> tuple[Strategy, ...]:
    """Up to eight strategies with another boundary between placements, and as many with two servers
    exchanged; the fastest by the coarse simulator. As `fastest_near`."""
    found: tuple[Strategy, ...] = ()
    servers = problem.cluster.servers
    for changes in (_other_boundaries(strategy), _exchanged_servers(strategy, servers)):
        others = (other for other in dict.fromkeys(changes) if _is_executable(problem, other))
        found += fastest_near(problem, strategy, legal(problem, others), _TRIED)
    return found


def _is_executable(problem: SearchProblem, strategy: Strategy) -> bool:
    return problem.executable is None or all(map(problem.executable, strategy))


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


def _exchanged_servers(strategy: Strategy, servers: int) -> Iterator[Strategy]:
    for one, other in itertools.combinations(range(servers), 2):
        to = list(range(servers))
        to[one], to[other] = other, one
        made = tuple(_moved(placement, to) for placement in strategy)
        if made != strategy:
            yield made


def _moved(placement: Placement, to: list[int]) -> Placement:
    servers = tuple(to[server] for server in placement.servers)
    if len(servers) == placement.sample:  # equal shards
        servers = tuple(sorted(servers))
    return replace(placement, servers=servers)
