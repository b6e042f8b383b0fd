"""Starting points of the search and the memory limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.refusals import refused
from support.search_cases import memory_by_server
from support.small_op_graphs import chain, embeddings, graph, operator

from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.search.lowering import memory_limit
from torch_topoopt.search.strategies import (
    check_memory,
    data_parallel,
    starting_strategies,
    whole_operators,
)


def test_a_search_starts_only_from_what_is_executable() -> None:
    op_graph = graph(operator("a", parameters=10**6), operator("b", parameters=10**6))
    cluster = Cluster(4, 2, 10.0)
    starts = starting_strategies(
        op_graph, cluster, lambda p: p.operator == "a" or len(p.servers) == 4
    )
    assert {start[1].servers for start in starts} == {(0, 1, 2, 3)}
    assert (0,) in {start[0].servers for start in starts}


def test_data_parallelism_needs_a_sample_per_server() -> None:
    with refused(ValueError, "batch_size", 64, 65):
        data_parallel(chain(1), 65)


def test_whole_operators_are_spread_by_size() -> None:
    op_graph = graph(*(operator(f"t{size}", parameters=size) for size in (5, 9, 4, 8, 1)))
    cluster = Cluster(2, 1, 10.0)
    strategy = whole_operators(op_graph, cluster, set(range(4)))
    assert [p.servers for p in strategy] == [(1,), (0,), (0,), (1,), (0, 1)]


def test_memory_counts_parameters_gradients_and_saved_activations() -> None:
    op_graph = graph(operator("a", parameters=100, output=30), operator("b", parameters=7))
    cluster = Cluster(4, 2, 10.0)
    strategy = (Placement("a", (0, 1, 3)), Placement("b", (1,)))
    assert memory_by_server(op_graph, cluster, strategy) == [210, 224, 0, 210]


def test_starts_are_only_those_that_fit_into_memory() -> None:
    cluster = Cluster(4, 2, 10.0)  # 4 GiB each; a table and its gradient take 3 GB
    op_graph = embeddings(4, table_bytes=1_500_000_000)
    starts = starting_strategies(op_graph, cluster)
    assert data_parallel(op_graph, 4) not in starts
    for start in starts:
        assert max(memory_by_server(op_graph, cluster, start)) <= memory_limit(cluster)
    assert data_parallel(chain(3), 4) in starting_strategies(chain(3), cluster)


def test_without_a_memory_limit_everything_fits() -> None:
    cluster = replace(Cluster(4, 2, 10.0), memory_limited=False)
    op_graph = embeddings(5, table_bytes=1_500_000_000)
    assert data_parallel(op_graph, 4) in starting_strategies(op_graph, cluster)
    check_memory(op_graph, cluster, data_parallel(op_graph, 4))


def test_a_start_is_found_where_only_some_operators_must_be_whole() -> None:
    # Data parallelism takes 6 GB; activations are so large that only memory asks for whole ones.
    # With one operator whole its home still holds all three, so two must be.
    op_graph = graph(
        operator("a", parameters=10**9, output=10**8),
        operator("b", (0, 10**10, 10**10), parameters=10**9),
        operator("c", (1, 10**10, 10**10), parameters=10**9),
    )
    cluster = Cluster(4, 2, 10.0)
    (start,) = starting_strategies(op_graph, cluster)
    assert sorted(len(p.servers) for p in start) == [1, 1, 4]


def test_too_little_memory_names_bytes_needed_and_available() -> None:
    op_graph = embeddings(5, table_bytes=1_500_000_000)
    available = memory_limit(Cluster(4, 2, 10.0))
    with pytest.raises(ValueError, match=rf"\b60\d{{8}} bytes .*\b{available}\b"):
        starting_strategies(op_graph, Cluster(4, 2, 10.0))
    with pytest.raises(ValueError, match=r"\b150\d{8} bytes"):
        check_memory(op_graph, Cluster(4, 2, 10.0), data_parallel(op_graph, 4))
