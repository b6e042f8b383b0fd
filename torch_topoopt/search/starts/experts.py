"""Strategies that an expert would try: starts of a search, and a bound on its result.

Tables and large layers apart; branches side by side; layers in parts of their parameters, in groups
that lie along a ring or across it; experts over one ring (Lepikhin et al., GShard, 2020); pipelines
cut where one tensor is handed over; layers in runs. Everything else shares samples.

The network decides which of them are fast, so the coarse simulator prices them on it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from torch_topoopt.search.defaults import LEVELS_SLACK
from torch_topoopt.search.starts.branches import branches_apart
from torch_topoopt.search.starts.fewer_servers import on_fewer_servers
from torch_topoopt.search.starts.fitting import fastest_s, fitting, timed
from torch_topoopt.search.starts.layer_runs import layers_in_runs
from torch_topoopt.search.starts.operators_apart import in_parts, on_groups, spread
from torch_topoopt.search.starts.pipelines import pipelines_of_stages
from torch_topoopt.search.starts.split_layers import layers_in_parts
from torch_topoopt.search.traffic import transfer_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.starts.case import Family
    from torch_topoopt.search.strategies import Strategy

BEST_EXPERTS = 3  # added to the other starts of a search on a network
# Arrangements of equally fast strategies on other servers. They tie on an ideal switch, but a
# network wired for the job may be fast with one only.
_ARRANGEMENTS = 3

# In the order of their names in reports; runs of layers come after all of these.
_EXPERTS: tuple[Family, ...] = (
    *(spread, on_groups, branches_apart, in_parts, layers_in_parts, pipelines_of_stages),
    on_fewer_servers,
)


def expert_strategies(problem: SearchProblem, *, runs: bool = True) -> dict[str, Strategy]:
    """Strategies by name, each once: those of the search space of `problem` that fit into memory.

    None makes more than the problem's `max_transfers` transfers between servers, one way. With
    `runs`, layers in runs come after the others.
    """
    families = (*_EXPERTS, layers_in_runs) if runs else _EXPERTS
    return {
        name: strategy
        for strategy, name in fitting(problem, families).items()
        if transfer_count(problem.op_graph, strategy) <= problem.max_transfers
    }


def expert_starts(problem: SearchProblem, most: int = BEST_EXPERTS) -> tuple[Strategy, ...]:
    """Up to `most` strategies of `expert_strategies` that are fastest on the network of `problem`.

    By the coarse simulator, and less than 5 % slower than the fastest of its starts; ties go to
    the first. Runs of layers are left to `layer_runs_below`.
    """
    limit_s = fastest_s(problem, problem.starts) * (1 + LEVELS_SLACK)
    return _below(problem, _EXPERTS, limit_s, most, equally_fast=1, known=problem.starts)


def experts_below(problem: SearchProblem, limit_s: float, most: int) -> tuple[Strategy, ...]:
    """Up to `most` of `expert_strategies`, in ascending order of time, below `limit_s`.

    By the coarse simulator. Runs of layers are left to `layer_runs_below`.
    """
    return _below(problem, _EXPERTS, limit_s, most)


def layer_runs_below(
    problem: SearchProblem, limit_s: float = math.inf, most: int = BEST_EXPERTS
) -> tuple[Strategy, ...]:
    """As `experts_below`, of layers in runs; below the fastest start of `problem`, too.

    Separate, because on an ideal switch they may be the fastest, but slower on any network wired
    for a job, so that they would displace better candidates.
    """
    return _below(
        problem, (layers_in_runs,), min(limit_s, fastest_s(problem, problem.starts)), most
    )


def _below(
    problem: SearchProblem,
    families: Sequence[Family],
    limit_s: float,
    most: int,
    *,
    equally_fast: int = _ARRANGEMENTS,
    known: Sequence[Strategy] = (),
) -> tuple[Strategy, ...]:
    """Up to `most` below `limit_s` that are not `known`, and `equally_fast` of the same time."""
    with_time: Counter[str] = Counter()
    chosen: list[Strategy] = []
    for seconds, strategy in timed(problem, fitting(problem, families)):
        if seconds >= limit_s or len(chosen) == most:
            break
        rounded = f"{seconds:.6g}"
        if strategy in known or with_time[rounded] == equally_fast:
            continue
        if transfer_count(problem.op_graph, strategy) <= problem.max_transfers:
            with_time[rounded] += 1
            chosen.append(strategy)
    return tuple(chosen)
