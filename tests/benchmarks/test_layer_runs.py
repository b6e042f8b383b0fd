"""Layers in runs on every second or fourth server."""

from __future__ import annotations

import pytest
from support.small_op_graphs import chain

from figures.cells.layer_runs import in_runs, iteration
from torch_topoopt.plan import Placement
from torch_topoopt.search.strategies import data_parallel


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


def test_runs_help_where_any_servers_have_the_full_rate_and_not_on_rings_of_all() -> None:
    """NCF's AllReduce is shared by two halves; TopoOpt's ports are wired for rings."""
    times = iteration(model="ncf", servers=16, degree=4, gbps=10.0, costs="estimated", seed=0)
    alone, runs = (
        times["iteration_s"][name]
        for name in ("tables one a server", "tables one a server, 2 runs")
    )
    for network in ("Ideal Switch", "Fat-tree, d B' = B"):
        assert runs[network] < 0.9 * alone[network]
    assert runs["TopoOpt"] > alone["TopoOpt"]
