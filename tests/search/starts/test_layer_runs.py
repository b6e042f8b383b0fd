"""Layers in runs on every second or fourth server."""

from __future__ import annotations

import pytest
from support.small_op_graphs import chain, embeddings

from torch_topoopt.architectures import ideal_switch
from torch_topoopt.comparison.estimate import predict_on
from torch_topoopt.comparison.own_search import OwnSearches
from torch_topoopt.launcher.documents import op_graph_of
from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import (
    expert_starts,
    expert_strategies,
    layer_runs_below,
)
from torch_topoopt.search.starts.layer_runs import in_runs
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.search.strategies import data_parallel, whole_operators
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import predict
from torch_topoopt.topology.find_network import find_network


@pytest.mark.parametrize("count", [1, 2, 4])
def test_runs_follow_one_another_on_servers_of_their_own(count: int) -> None:
    graph = chain(8)
    base = data_parallel(graph, 8)
    placed = in_runs(graph, base, 8, count)
    order = [placement.servers[0] for placement in placed]
    assert order == sorted(order)
    assert {placement.servers for placement in placed} == {
        tuple(range(run, 8, count)) for run in range(count)
    }
    assert (placed == base) == (count == 1)


def test_runs_have_as_many_parameters_but_for_one_operator() -> None:
    graph = chain(8)
    placed = in_runs(graph, data_parallel(graph, 8), 8, 4)
    bytes_of = [0] * 4
    for operator, placement in zip(graph.operators, placed, strict=True):
        bytes_of[placement.servers[0]] += operator.parameter_bytes
    largest = max(operator.parameter_bytes for operator in graph.operators)
    assert max(bytes_of) - min(bytes_of) <= 2 * largest


def test_what_is_not_on_all_servers_stays() -> None:
    graph = chain(4)
    first, *others = data_parallel(graph, 8)
    base = (Placement(first.operator, (5,)), *others)
    placed = in_runs(graph, base, 8, 2)
    assert placed[0] == base[0]
    assert all(len(placement.servers) == 4 for placement in placed[1:])


def test_fewer_samples_than_servers_of_a_run_are_on_as_many_of_them() -> None:
    graph = chain(8)
    placed = in_runs(graph, data_parallel(graph, 16), 16, 2, samples=4)
    assert {placement.servers for placement in placed} == {(0, 4, 8, 12), (1, 5, 9, 13)}


@pytest.mark.parametrize("tables", [0, 4])
@pytest.mark.parametrize("count", [2, 4])
def test_no_search_on_an_ideal_switch_loses_to_runs(tables: int, count: int) -> None:
    """NCF's on 128 servers took 257 ms at 10 Gb/s, where runs take less than half."""
    graph = embeddings(4, table_bytes=10**8, rows_bytes=10**6) if tables else chain(8)
    cluster = Cluster(16, 4, 10.0)
    base = data_parallel(graph, 16)
    if tables:
        chosen = [i for i, o in enumerate(graph.operators) if o.name.startswith("table")]
        base = whole_operators(graph, cluster, chosen)
    placed = in_runs(graph, base, 16, count)
    searches = OwnSearches(
        graph, cluster, PlanningOptions(evaluations=1), 1, lambda _: (data_parallel(graph, 16),)
    )
    switch = ideal_switch.build(cluster)
    found = searches.fastest(switch, searches.of(switch))
    seconds = [predict_on(switch, graph, cluster, each).iteration_s for each in (found, placed)]
    assert seconds[0] <= seconds[1] * (1 + 1e-9)


def test_runs_are_apart_from_other_experts_and_faster_than_where_a_search_begins() -> None:
    graph, cluster = chain(8, parameters=10**9), Cluster(16, 4, 10.0)
    problem = SearchProblem(graph, cluster, None, (data_parallel(graph, 16),))
    named = expert_strategies(problem)
    runs = {strategy for name, strategy in named.items() if name.endswith(" runs")}
    found = layer_runs_below(problem)
    assert found
    assert runs.issuperset(found)
    assert runs.isdisjoint(expert_starts(problem))
    coarse = problem.coarse_simulator((*found, *problem.starts))
    assert max(map(coarse.run, found)) < min(map(coarse.run, problem.starts))
    assert not layer_runs_below(problem, min(map(coarse.run, found)))


def test_plans_begin_on_a_network_for_runs_where_these_gain() -> None:
    """DLRM on 64 servers began at 529 ms at 10 Gb/s, and at 357 ms like this."""
    graph = op_graph_of("dlrm", accelerators=64)
    cluster = Cluster(64, 4, 10.0, accelerator="a100")
    options = PlanningOptions(evaluations=1, rounds=1)
    starts = planning_starts(SearchProblem(graph, cluster, dimensions=options.dimensions))
    problem = SearchProblem(graph, cluster, None, starts, dimensions=options.dimensions)
    made = plan(graph, cluster, options).prediction.iteration_s
    times = []
    for found in (expert_starts(problem, 1), layer_runs_below(problem, most=1)):
        network = find_network(cluster, demand(graph, found[0], 64))
        times.append(predict(graph, cluster, network, found[0]).iteration_s)
    assert times[1] < 0.9 * times[0]
    assert made <= times[1] * 1.001
