"""Alternatives for large operators."""

from __future__ import annotations

import pytest
from support.search_cases import coarse_simulator, wired
from support.small_op_graphs import chain, embeddings, graph, operator

from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.planner.explain import LARGE, explain
from torch_topoopt.search.strategies import data_parallel, whole_operators
from torch_topoopt.search.strategy_space import DIMENSIONS


def test_a_whole_table_beats_a_shared_one_and_explain_says_by_how_much() -> None:
    op_graph = embeddings(4, table_bytes=10**8)
    cluster = Cluster(4, 2, 10.0)
    network = wired(op_graph, cluster)
    strategy = whole_operators(op_graph, cluster, {1, 2, 3})
    (table,) = (e for e in explain(op_graph, cluster, network, strategy) if e.bytes_share > 0.9)
    assert table.placement == Placement("table3", (0, 1, 2, 3))
    best = table.alternatives[0]
    assert len(best.placement.servers) == 1
    assert best.fits
    assert best.iteration_s < table.iteration_s / 2
    coarse = coarse_simulator(op_graph, cluster, network, [strategy], schedules=True)
    assert table.iteration_s == coarse.run(strategy)
    changed = (*strategy[:4], best.placement, *strategy[5:])
    assert best.iteration_s == coarse.run(changed)


def test_the_largest_come_first_and_the_small_are_left_out() -> None:
    cluster = Cluster(4, 2, 10.0)
    sizes = [1, 40, 3, 20, 1.5, 34.5]  # the first and the fifth are too small
    op_graph = graph(*(operator(f"op{i}", flops=int(n * 1e9)) for i, n in enumerate(sizes)))
    found = explain(op_graph, cluster, wired(op_graph, cluster), data_parallel(op_graph, 4))
    assert [entry.placement.operator for entry in found] == ["op1", "op5", "op3", "op2"]
    for entry, size in zip(found, (40, 34.5, 20, 3), strict=True):
        assert entry.compute_share == pytest.approx(size / 100, rel=0.01)
        assert entry.compute_share >= LARGE
        assert not entry.alike
        times = [other.iteration_s for other in entry.alternatives]
        assert times == sorted(times)
        assert len({other.placement.degrees for other in entry.alternatives}) == len(times)


def test_operators_that_are_alike_are_explained_together() -> None:
    op_graph = chain(60)
    cluster = Cluster(4, 2, 10.0)
    strategy = list(data_parallel(op_graph, 4))
    strategy[7] = Placement("layer7", (2,))
    found = explain(op_graph, cluster, wired(op_graph, cluster), tuple(strategy))
    first, *_ = found
    assert first.placement.operator == "layer1"  # layer0 reads nothing
    assert len(first.alike) == 57
    assert not {"layer0", "layer1", "layer7"} & set(first.alike)
    assert first.parameter_share == pytest.approx(58 / 60)


def test_what_does_not_fit_comes_last_and_says_so() -> None:
    op_graph = embeddings(4, table_bytes=1_500_000_000)
    cluster = Cluster(4, 2, 10.0)
    strategy = whole_operators(op_graph, cluster, {1, 2, 3, 4})
    found = explain(op_graph, cluster, wired(op_graph, cluster), strategy)
    assert sum(1 + len(entry.alike) for entry in found) == len(op_graph.operators)
    tables = [entry for entry in found if entry.placement.operator.startswith("table")]
    assert tables
    for entry in tables:
        assert not any(other.fits for other in entry.alternatives)
        assert any(other.placement.sample == 4 for other in entry.alternatives)


def test_other_dimensions_are_alternatives_where_they_are_asked_for() -> None:
    columns = (Split("columns", 64, "whole"),)
    op_graph = graph(operator("wide", flops=10**9, parameters=10**9, splits=columns))
    cluster = Cluster(4, 2, 10.0)
    network = wired(op_graph, cluster)
    for dimensions, expected in (((), False), (DIMENSIONS, True)):
        (entry,) = explain(
            op_graph, cluster, network, data_parallel(op_graph, 4), dimensions=dimensions
        )
        assert any(o.placement.columns > 1 for o in entry.alternatives) == expected
