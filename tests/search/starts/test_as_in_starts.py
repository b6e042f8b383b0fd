"""Operators of one kind as in a start, the others as found."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.search_cases import memory_by_server, wired
from support.small_op_graphs import embeddings, random_graph, random_strategy

from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.search.lowering import memory_limit
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.as_in_starts import as_in_starts
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.search.traffic import transfer_count

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.strategies import Strategy


def by_name(op_graph: OpGraph) -> OpGraph:
    """With tables and the rest as kinds."""
    kinds = ["table" if o.name.startswith("table") else "layer" for o in op_graph.operators]
    operators = (replace(o, kind=kind) for o, kind in zip(op_graph.operators, kinds, strict=True))
    return replace(op_graph, operators=tuple(operators))


def problem_of(op_graph: OpGraph, strategy: Strategy, cluster: Cluster) -> SearchProblem:
    return SearchProblem(op_graph, cluster, wired(op_graph, cluster), (strategy,))


def with_tables_on(op_graph: OpGraph, servers: int, homes: list[int]) -> Strategy:
    """Table t whole on server homes[t], everything else data parallel."""
    placed = list(data_parallel(op_graph, servers))
    for table, home in enumerate(homes):
        placed[table + 1] = Placement(op_graph.operators[table + 1].name, (home,))
    return tuple(placed)


def test_tables_are_spread_as_in_the_start_and_layers_stay() -> None:
    servers, tables = 4, 8
    op_graph = by_name(embeddings(tables))
    uneven = with_tables_on(op_graph, servers, [0, 0, 0, 0, 0, 1, 2, 3])
    layers = (*uneven[:-1], Placement(uneven[-1].operator, (0, 2)))
    even = with_tables_on(op_graph, servers, [t % servers for t in range(tables)])
    problem = problem_of(op_graph, layers, Cluster(servers, 2, 25.0))
    found = as_in_starts(problem, layers, (layers, even))
    assert (*even[:-1], layers[-1]) in found
    coarse = problem.coarse_simulator((layers, *found))
    assert coarse.run(found[0]) < coarse.run(layers)
    assert [coarse.run(other) for other in found] == sorted(map(coarse.run, found))
    assert as_in_starts(problem, layers, (layers,)) == ()
    assert as_in_starts(problem, layers, (layers, even), 1) == found[:1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_what_is_found_may_be_planned(seed: int, micro_batches: int) -> None:
    rng = random.Random(seed)
    op_graph = random_graph(rng, 9)
    kinds = (replace(o, kind=rng.choice("ab")) for o in op_graph.operators)
    op_graph = replace(op_graph, operators=tuple(kinds))
    servers, cluster = 6, Cluster(6, 4, 25.0)
    strategy = random_strategy(rng, op_graph, servers)
    starts = tuple(random_strategy(rng, op_graph, servers) for _ in range(40))
    few = replace(
        problem_of(op_graph, strategy, cluster), micro_batches=micro_batches, max_transfers=30
    )
    found = as_in_starts(few, strategy, starts)
    assert found
    assert len(set(found)) == len(found) <= 8
    coarse = few.coarse_simulator((strategy, *found))
    for other in found:
        check_strategy(op_graph, servers, other, micro_batches=micro_batches)
        needed = memory_by_server(op_graph, cluster, other, micro_batches=micro_batches)
        assert max(needed) <= memory_limit(cluster)
        assert transfer_count(op_graph, other) <= max(30, transfer_count(op_graph, strategy))
        assert coarse.run(other) <= 1.05 * coarse.run(strategy)
