"""The descent at flow level that ends a plan's rounds."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from search_cases import wired
from support.small_op_graphs import chain, random_graph

from torch_topoopt.plan import Cluster
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.descent import descend
from torch_topoopt.search.lowering import memory_by_server, memory_limit
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.strategy_space import DIMENSIONS, check_strategy
from torch_topoopt.sim import predict


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
