"""Defaults of planning, in a module of their own so that `--help` need not load the planner."""

from __future__ import annotations

DEFAULT_CHAINS = 4  # parallel chains of the search
# Below this, the order of two strategies may differ between the coarse and the fine simulator.
LEVELS_SLACK = 0.05

_ROUNDS = 4  # on many servers
_ROUNDS_ON_FEW = 8
_EVALUATIONS = 50_000  # on many servers
_FEW_SERVERS = 64  # on fewer, proposals are cheaper, so the search makes more
_MOST_TIMES = 8
_PER_OPERATOR = 4_000  # a small graph needs no more


def default_rounds(servers: int) -> int:
    """The default maximum of rounds.

    On 64 servers or more 4; on fewer 8, since the last round may find the largest gain.
    """
    return _ROUNDS_ON_FEW if few_servers(servers) else _ROUNDS


def few_servers(servers: int) -> bool:
    """Whether proposals are cheap enough for a longer search."""
    return servers < _FEW_SERVERS


def times_on_few(servers: int, most: int) -> int:
    """The factor on the search budget compared with many servers, up to `most`."""
    return min(max(1, _FEW_SERVERS // servers), most)


def default_evaluations(servers: int, operators: int) -> int:
    """The default number of proposals of a round.

    On 64 servers or more 50 000. On fewer the number grows as proposals get cheaper, up to eight
    times, but not above 4 000 for each operator.
    """
    times = times_on_few(servers, _MOST_TIMES)
    return max(_EVALUATIONS, min(times * _EVALUATIONS, _PER_OPERATOR * operators))
