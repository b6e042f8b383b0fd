"""Searches of architectures: nested in bandwidth, so that more of it never makes one slower."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.small_op_graphs import chain, embeddings, random_graph

from torch_topoopt.architectures import ARCHITECTURES, fat_tree
from torch_topoopt.comparison.compare import compare
from torch_topoopt.comparison.estimate import predict_on
from torch_topoopt.comparison.own_search import OwnSearches, searched_gbps, sent_gbps
from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.search.strategy_space import DIMENSIONS

TABLE_2 = (10.0, 25.0, 40.0, 100.0, 200.0)
STILL = ("ideal-switch", "fat-tree", "jellyfish")


def test_the_rates_of_a_search_are_among_those_of_every_faster_one() -> None:
    assert searched_gbps(1.0) == searched_gbps(10.0) == (10.0,)
    assert searched_gbps(10.1) == (10.0, 25.0)
    assert searched_gbps(801.0) == (*TABLE_2, 400.0, 800.0, 1600.0)
    assert sent_gbps(fat_tree.build(Cluster(8, 4, 25.0), server_gbps=60.0)) == 60.0


@pytest.mark.parametrize("evaluations", [0, 40])
@pytest.mark.parametrize("name", ["ideal-switch", "fat-tree", "jellyfish"])
def test_more_bandwidth_is_never_slower_at_any_budget(name: str, evaluations: int) -> None:
    op_graph = embeddings(5, table_bytes=3 * 10**7, rows_bytes=10**7)
    rows = Split("rows", 64, "whole")
    op_graph = replace(
        op_graph,
        operators=tuple(
            replace(o, splits=(rows,)) if "table" in o.name else o for o in op_graph.operators
        ),
    )
    before_s = float("inf")
    for gbps in (10.0, 14.5, 20.1, 32.0, 100.0):
        cluster = Cluster(8, 4, gbps)
        starts = planning_starts(SearchProblem(op_graph, cluster, dimensions=DIMENSIONS))
        # data parallelism alone: the rest is for the searches to find
        options = PlanningOptions(evaluations=evaluations)
        searches = OwnSearches(op_graph, cluster, options, 1, lambda _, found=starts: found[:1])
        topology = ARCHITECTURES[name](cluster, seed=0)
        fastest = searches.fastest(topology, searches.of(topology))
        seconds = predict_on(topology, op_graph, cluster, fastest).iteration_s
        assert seconds <= before_s * (1 + 1e-9), gbps
        before_s = seconds


@pytest.mark.parametrize("seed", range(2))
def test_separate_comparisons_are_in_order_whatever_is_planned_for_topoopt(seed: int) -> None:
    op_graph = random_graph(random.Random(seed), 8, splits=True)
    options = PlanningOptions(rounds=1, evaluations=15, seed=seed)
    before: dict[str, float] = {}
    for gbps in (10.0, 20.0, 31.0, 100.0, 250.0):
        cluster = Cluster(8, 4, gbps)
        # a plan that no search finds at these budgets: it may not help the others
        planned = plan(op_graph, cluster, replace(options, evaluations=300, rounds=2))
        made = compare(op_graph, cluster, STILL, options=options, plan=planned)
        for row in made.rows:
            assert row.iteration_s <= before.get(row.architecture, row.iteration_s) * (1 + 1e-9)
            assert row.strategy != "topoopt"
            before[row.architecture] = row.iteration_s
    alone = replace(options, strategy_space="data-parallel")
    (row,) = compare(op_graph, cluster, ("fat-tree",), options=alone).rows
    assert row.strategy == "topoopt", "where nothing is searched, the plan's is the only one"


@pytest.mark.parametrize("names", [("ideal-switch", "rail-only"), ("rail-only", "ideal-switch")])
@pytest.mark.parametrize("seed", [4, 5])
def test_nothing_is_faster_than_the_ideal_switch(
    names: tuple[str, str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rail-only once was, by 6 %: its search had found a strategy that the switch's had not."""
    op_graph = random_graph(random.Random(seed), 8, splits=True)
    monkeypatch.setattr(OwnSearches, "of_switch", OwnSearches.starts)  # which finds nothing
    options = PlanningOptions(rounds=1, evaluations=400)
    made = compare(op_graph, Cluster(8, 4, 10.0), names, options=options)
    assert tuple(row.architecture for row in made.rows) == names
    assert {row.strategy for row in made.rows} == {"own"}
    ideal_s, rail_s = (made.row(name).iteration_s for name in ("ideal-switch", "rail-only"))
    assert ideal_s <= rail_s * (1 + 1e-9)


def test_every_architecture_gains_from_bandwidth_in_a_sweep() -> None:
    op_graph = chain(4, parameters=3 * 10**8, flops=10**12)
    options = PlanningOptions(rounds=1, evaluations=20)
    before: dict[str, float] = {}
    known = ()
    for gbps in TABLE_2:
        made = compare(op_graph, Cluster(8, 4, gbps), STILL, options=options, known=known)
        assert set(made.strategies) == {row.architecture for row in made.rows}
        for row in made.rows:
            assert row.iteration_s <= before.get(row.architecture, row.iteration_s) * (1 + 1e-9)
            before[row.architecture] = row.iteration_s
        known = tuple(dict.fromkeys((*known, *made.strategies.values())))


def test_a_strategy_that_is_given_is_the_only_one() -> None:
    op_graph, cluster = chain(3), Cluster(8, 4, 10.0)
    (start, *_) = planning_starts(SearchProblem(op_graph, cluster))
    for options in (
        PlanningOptions(strategy=start, evaluations=0),
        PlanningOptions(strategy_space="data-parallel"),
    ):
        made = compare(op_graph, cluster, ("topoopt", "fat-tree", "jellyfish"), options=options)
        assert set(made.strategies.values()) == {made.plan.strategy}
