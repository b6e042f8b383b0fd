"""The descent at flow level that ends a plan's rounds."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.search_cases import memory_by_server, wired
from support.small_op_graphs import chain, random_graph

from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search import descent
from torch_topoopt.search.descent import TaskBudget, descend, descend_by_blocks
from torch_topoopt.search.lowering import memory_limit
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.strategy_space import DIMENSIONS, check_strategy
from torch_topoopt.sim import predict

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph


@pytest.mark.parametrize("seed", range(4))
def test_a_descent_is_never_slower_and_ends_where_another_one_gains_nothing(seed: int) -> None:
    op_graph = random_graph(random.Random(seed), 8, splits=True)
    cluster = Cluster(4, 2, 10.0)
    network = wired(op_graph, cluster)
    start = data_parallel(op_graph, 4)
    problem = SearchProblem(op_graph, cluster, network, (start,), dimensions=DIMENSIONS)
    found = descend(problem, 10_000, slack=math.inf)
    check_strategy(op_graph, 4, found)
    assert max(memory_by_server(op_graph, cluster, found)) <= memory_limit(cluster)
    before_s = predict(op_graph, cluster, network, start).iteration_s
    assert predict(op_graph, cluster, network, found).iteration_s <= before_s
    again = replace(problem, starts=(found,))
    assert descend(again, 10_000, slack=math.inf) == found
    assert descend(problem, 0) == start, "without evaluations nothing changes"


def test_two_seeds_of_a_small_model_end_within_a_hundredth() -> None:
    op_graph = chain(6, parameters=10**8, flops=10**11)
    found = [
        plan(op_graph, Cluster(4, 2, 10.0), PlanningOptions(seed=seed, evaluations=1000))
        for seed in range(2)
    ]
    times = [made.prediction.iteration_s for made in found]
    assert max(times) <= min(times) * 1.01


_LAYERS = 7


def _broken_pattern(seed: int) -> SearchProblem:
    """Alike layers in a row, on all servers or on some of them at random."""
    op_graph, cluster = chain(_LAYERS, parameters=10**8, flops=10**11), Cluster(4, 2, 10.0)
    draw = random.Random(seed)
    sets = ((0, 1, 2, 3), (0, 2), (1, 3), (0,), (1,))
    start = tuple(Placement(o.name, draw.choice(sets)) for o in op_graph.operators)
    return SearchProblem(op_graph, cluster, wired(op_graph, cluster), (start,))


@pytest.mark.parametrize("seed", range(3))
def test_below_a_descent_by_blocks_no_block_gains(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descent, "_BLOCK_SLACK", math.inf)
    problem = _broken_pattern(seed)
    op_graph, cluster, network = problem.op_graph, problem.cluster, wired(*_of(problem))

    def seconds(strategy: tuple[Placement, ...]) -> float:
        return predict(op_graph, cluster, network, strategy).iteration_s

    (found,) = descend_by_blocks([problem], 10_000)
    assert seconds(found) < seconds(problem.starts[0])
    for length in range(2, _LAYERS):
        for start in range(_LAYERS - length + 1):
            for to in range(_LAYERS - length + 1):
                other = list(found)
                for i in range(length):
                    placed = found[start + i]
                    other[to + i] = replace(placed, operator=other[to + i].operator)
                assert seconds(tuple(other)) >= seconds(found) * (1 - 1.0001e-4)


def _of(problem: SearchProblem) -> tuple[OpGraph, Cluster]:
    return problem.op_graph, problem.cluster


def test_descents_side_by_side_find_what_each_finds_alone() -> None:
    problems = [_broken_pattern(seed) for seed in range(4)]
    alone = [descend_by_blocks([_broken_pattern(seed)], 10_000)[0] for seed in range(4)]
    assert descend_by_blocks(problems, 10_000, workers=3) == alone


def test_descents_share_a_task_budget() -> None:
    problems = [_broken_pattern(seed) for seed in range(2)]
    starts = [problem.starts[0] for problem in problems]
    spent = TaskBudget(0)
    assert descend_by_blocks(problems, 10_000, budget=spent) == starts
    assert descend(problems[0], 10_000, budget=spent) == starts[0]
    assert spent.left == 0
    ample = TaskBudget(10**9)
    ends = descend_by_blocks(problems, 10_000, budget=ample)
    left = ample.left
    assert left < 10**9
    assert ends == descend_by_blocks([_broken_pattern(seed) for seed in range(2)], 10_000)
    assert descend(problems[0], 10_000, budget=ample) == descend(problems[0], 10_000)
    assert ample.left < left


def test_what_a_report_raises_ends_descents_side_by_side() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        descend_by_blocks([_broken_pattern(seed) for seed in range(2)], 10_000, interrupt)
