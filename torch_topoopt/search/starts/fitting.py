"""Starts that fit into memory and can be executed, and their times by the coarse simulator."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING

from torch_topoopt.search.lowering import degrees_of
from torch_topoopt.search.starts.case import StartCase
from torch_topoopt.search.strategies import Memory

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.starts.case import Family
    from torch_topoopt.search.strategies import Strategy


def fitting(problem: SearchProblem, families: Sequence[Family]) -> Mapping[Strategy, str]:
    """All of `families` that fit into memory and can be executed, with their names; cached for
    networks whose rings are in the same order."""
    if problem.cluster.servers == 1:
        return {}
    case = StartCase.of(problem)
    key = (
        *(case.orders, tuple(families), problem.micro_batches, problem.dimensions),
        *(problem.executable, problem.optimizer_factor),
    )
    return problem.experts.get(key, lambda: _made(problem, case, families))


def _made(
    problem: SearchProblem, case: StartCase, families: Sequence[Family]
) -> dict[Strategy, str]:
    made: dict[Strategy, str] = {}
    for family in families:
        for name, strategy in family(case):
            if problem.executable is None or all(map(problem.executable, strategy)):
                made.setdefault(strategy, name)
    memory = Memory(
        problem.op_graph,
        problem.cluster,
        degrees_of(made),
        problem.micro_batches,
        optimizer_factor=problem.optimizer_factor,
    )
    return {strategy: name for strategy, name in made.items() if fits(memory, strategy)}


def fits(memory: Memory, strategy: Strategy) -> bool:
    """Whether it fits into memory and, with micro-batches, its stages follow each other."""
    try:
        return memory.fits(strategy)
    except ValueError:
        return False


def timed(problem: SearchProblem, strategies: Collection[Strategy]) -> list[tuple[float, Strategy]]:
    """`strategies` in ascending order of seconds on the network of `problem`, by the coarse
    simulator; ties keep their order."""
    if not strategies:
        return []
    coarse = problem.coarse_simulator(tuple(strategies))
    return sorted(((coarse.run(s), s) for s in strategies), key=itemgetter(0))


def fastest_s(problem: SearchProblem, strategies: Collection[Strategy]) -> float:
    """The seconds of the fastest of `strategies`, by the coarse simulator; infinite without any."""
    return min((seconds for seconds, _ in timed(problem, strategies)), default=math.inf)
