"""Defaults of planning; apart, so that `--help` need not load the planner."""

from __future__ import annotations

DEFAULT_ROUNDS = 4
DEFAULT_CHAINS = 4  # of the search, side by side

_EVALUATIONS = 50_000  # on many servers
_FEW_SERVERS = 64  # fewer get more proposals, which are cheaper there
_MOST_TIMES = 8
_PER_OPERATOR = 4_000  # a small graph needs no more


def default_evaluations(servers: int, operators: int) -> int:
    """The proposals of a round where nobody asks for a number of them.

    On 64 servers or more 50 000; on fewer as many more as a proposal costs less, up to eight times,
    as far as that is no more than 4 000 for each operator.
    """
    times = min(max(1, _FEW_SERVERS // servers), _MOST_TIMES)
    return max(_EVALUATIONS, min(times * _EVALUATIONS, _PER_OPERATOR * operators))
