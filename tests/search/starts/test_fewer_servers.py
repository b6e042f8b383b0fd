"""Starts on some of the servers."""

from __future__ import annotations

import pytest
from support.small_op_graphs import embeddings, graph, operator

from torch_topoopt.plan import Cluster
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.case import StartCase
from torch_topoopt.search.starts.fewer_servers import on_fewer_servers


def test_they_use_every_number_of_servers_that_divides_theirs() -> None:
    problem = SearchProblem(embeddings(3, table_bytes=10**8), Cluster(6, 2, 10.0))
    found = dict(on_fewer_servers(StartCase.of(problem)))
    used = [{len(placement.servers) for placement in strategy} for strategy in found.values()]
    assert {max(counts) for counts in used} == {1, 2, 3}


@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_exchanges_more_than_it_computes_uses_one_server(seed: int) -> None:
    layers = [
        operator(f"layer{i}", *([(i - 1, 10**8, 10**8)] if i else []), flops=10**9,
                 parameters=10**9, output=10**8)
        for i in range(4)
    ]  # fmt: skip
    options = PlanningOptions(evaluations=2, rounds=1, seed=seed)
    made = plan(graph(*layers), Cluster(4, 2, 1.0, accelerator="a100"), options)
    assert {placement.servers for placement in made.strategy} == {(0,)}
