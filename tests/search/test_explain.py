"""What else could be done with large operators."""

from __future__ import annotations

import pytest
from search_cases import lowered, prices_of, wired
from small_op_graphs import chain, embeddings, graph, operator

from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.search.explain import LARGE, explain
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
    prices = prices_of(op_graph, cluster, network, [strategy])
    assert table.iteration_s == prices.run(lowered(strategy))
    changed = (*strategy[:4], best.placement, *strategy[5:])
    assert best.iteration_s == prices.run(lowered(changed))


def test_the_largest_come_first_and_the_small_are_left_out() -> None:
    op_graph = chain(60)
    cluster = Cluster(4, 2, 10.0)
    strategy = data_parallel(op_graph, 4)
    assert explain(op_graph, cluster, wired(op_graph, cluster), strategy) == ()
    few = chain(5)
    found = explain(few, cluster, wired(few, cluster), data_parallel(few, 4))
    assert len(found) == 5
    shares = [max(e.compute_share, e.bytes_share, e.parameter_share) for e in found]
    assert shares == sorted(shares, reverse=True)
    assert min(shares) >= LARGE
    assert sum(entry.compute_share for entry in found) == pytest.approx(1)
    for entry in found:
        times = [other.iteration_s for other in entry.alternatives]
        assert times == sorted(times)
        assert len({other.placement.degrees for other in entry.alternatives}) == len(times)


def test_what_does_not_fit_comes_last_and_says_so() -> None:
    op_graph = embeddings(4, table_bytes=1_500_000_000)
    cluster = Cluster(4, 2, 10.0)
    strategy = whole_operators(op_graph, cluster, {1, 2, 3, 4})
    found = explain(op_graph, cluster, wired(op_graph, cluster), strategy)
    tables = [entry for entry in found if entry.placement.operator.startswith("table")]
    assert tables
    for entry in tables:
        assert not any(other.fits for other in entry.alternatives)


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
