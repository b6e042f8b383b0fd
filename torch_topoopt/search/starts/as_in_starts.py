"""Strategies in which all operators of a kind are placed as in one of the starts.

A search moves one of many embedding tables at a time, or everything with the same splits, layers
included. So tables end on servers without symmetry, where the flow level may predict, and its
simulation take, more time: only symmetric parts are simulated once. Starts spread tables evenly, so
this module combines them with the layers' placements from the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.search.defaults import LEVELS_SLACK
from torch_topoopt.search.lowering import memory_limit
from torch_topoopt.search.starts.fitting import fastest_s, timed
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.search.traffic import transfer_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

_TRIED = 8


def as_in_starts(
    problem: SearchProblem, strategy: Strategy, starts: Sequence[Strategy], most: int = _TRIED
) -> tuple[Strategy, ...]:
    """Up to `most` strategies that differ from `strategy` in the operators of one kind (tables,
    linear layers, ...), which are placed as in one of `starts`.

    The fastest by the coarse simulator come first; all are at most 5 % slower there than
    `strategy`. Each fits into memory and makes no more transfers than `problem` allows, or than
    `strategy` makes.
    """
    placed = _placed_as(problem, strategy, starts)
    return fastest_near(problem, strategy, legal(problem, strategy, placed), most)


def fastest_near(
    problem: SearchProblem, strategy: Strategy, others: Iterable[Strategy], most: int
) -> tuple[Strategy, ...]:
    """Up to `most` of `others` as `as_in_starts` describes."""
    found = tuple(dict.fromkeys(others))
    if not found:
        return ()
    job = problem.job((strategy, *found))
    limit_s = fastest_s(problem, (strategy,)) * (1 + LEVELS_SLACK)
    limit_bytes = memory_limit(problem.cluster)
    most_transfers = max(problem.max_transfers, transfer_count(problem.op_graph, strategy))
    fit = (
        other
        for seconds, other in timed(problem, found)
        if seconds <= limit_s
        and max(_core.memory_bytes(job, other)) <= limit_bytes
        and transfer_count(problem.op_graph, other) <= most_transfers
    )
    return tuple(other for other, _ in zip(fit, range(most), strict=False))


def legal(
    problem: SearchProblem, strategy: Strategy, others: Iterable[Strategy]
) -> Iterator[Strategy]:
    """Those of `others` that a legal `strategy` may become: each operator is split as it allows,
    and stages, if any, follow each other."""
    servers, count = problem.cluster.servers, problem.micro_batches
    for other in others:
        try:
            yield check_strategy(
                problem.op_graph, servers, other, micro_batches=count, checked=strategy
            )
        except ValueError:
            continue


def _placed_as(
    problem: SearchProblem, strategy: Strategy, starts: Sequence[Strategy]
) -> Iterator[Strategy]:
    kinds = [operator.kind for operator in problem.op_graph.operators]
    for kind in dict.fromkeys(kinds):
        for start in starts:
            other = tuple(
                placed if of == kind else placement
                for placement, placed, of in zip(strategy, start, kinds, strict=True)
            )
            if other != strategy:
                yield other
