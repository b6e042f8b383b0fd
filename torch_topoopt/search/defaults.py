"""Defaults of planning; apart, so that `--help` need not load the planner."""

from __future__ import annotations

DEFAULT_CHAINS = 4  # of the search, side by side
# The coarse and the fine simulator differ by less between strategies that are split otherwise.
LEVELS_SLACK = 0.05

_ROUNDS = 4  # on many servers
_ROUNDS_ON_FEW = 8
_EVALUATIONS = 50_000  # on many servers
_FEW_SERVERS = 64  # fewer get more proposals, which are cheaper there
_MOST_TIMES = 8
_PER_OPERATOR = 4_000  # a small graph needs no more


def default_rounds(servers: int) -> int:
    """The most rounds where nobody asks for a number of them.

    On 64 servers or more 4; on fewer 8, since a network on which more is found than on all before
    may come last.
    """
    return _ROUNDS_ON_FEW if few_servers(servers) else _ROUNDS


def few_servers(servers: int) -> bool:
    """Whether a search may take its time, since a proposal takes little."""
    return servers < _FEW_SERVERS


def times_on_few(servers: int, most: int) -> int:
    """How many times as much a search may do as on many servers, up to `most`."""
    return min(max(1, _FEW_SERVERS // servers), most)


def default_evaluations(servers: int, operators: int) -> int:
    """The proposals of a round where nobody asks for a number of them.

    On 64 servers or more 50 000; on fewer as many more as a proposal costs less, up to eight times,
    as far as that is no more than 4 000 for each operator.
    """
    times = times_on_few(servers, _MOST_TIMES)
    return max(_EVALUATIONS, min(times * _EVALUATIONS, _PER_OPERATOR * operators))
