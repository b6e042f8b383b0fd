"""Cutting a graph into the stages of a pipeline."""

from __future__ import annotations

import itertools
import random

import pytest
from support.refusals import refused
from support.search_cases import memory_by_server
from support.small_op_graphs import chain, graph, operator

from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Cluster, Degrees
from torch_topoopt.search.lowering import memory_limit
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import expert_strategies
from torch_topoopt.search.starts.pipelines import pipeline, pipelines, split_pipeline
from torch_topoopt.sim import predict_ideal_switch


@pytest.mark.parametrize("seed", range(8))
def test_no_other_cuts_have_a_faster_slowest_stage(seed: int) -> None:
    rng = random.Random(seed)
    flops = [rng.randrange(1, 10**12) for _ in range(7)]
    op_graph = graph(
        *(
            operator(f"o{i}", *([(i - 1, 8, 8)] if i else []), flops=size)
            for i, size in enumerate(flops)
        )
    )
    strategy = pipeline(op_graph, Cluster(3, 2, 10.0), 3, 4)
    assert strategy is not None
    found = max(
        sum(size for size, p in zip(flops, strategy, strict=True) if p.servers == (server,))
        for server in range(3)
    )
    best = min(
        max(sum(flops[:a]), sum(flops[a:b]), sum(flops[b:]))
        for a, b in itertools.combinations(range(1, 7), 2)
    )
    assert found <= best * (1 + 1e-6)


def test_stages_are_on_servers_of_their_own_in_order() -> None:
    strategy = pipeline(chain(4), Cluster(4, 2, 10.0), 2, 8)
    assert strategy is not None
    assert [p.servers for p in strategy] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert pipeline(chain(2), Cluster(4, 2, 10.0), 4, 8) is None
    with refused(ValueError, "stages", 3, 4):
        pipeline(chain(4), Cluster(4, 2, 10.0), 3, 8)


def test_three_dimensions_split_the_servers_between_them() -> None:
    """Two stages of four servers: two parts of the layers, in pairs, and two of the samples."""
    splits = (Split("columns", 8, "whole"), Split("rows", 8, "part"))
    layers = [
        operator(f"layer{i}", *([(i - 1, 64, 64)] if i else []), flops=10**9, parameters=64,
                 output=64, splits=splits)
        for i in range(4)
    ]  # fmt: skip
    op_graph, cluster = graph(*layers), Cluster(8, 4, 10.0)
    strategy = split_pipeline(op_graph, cluster, 2, 2, 4, ("columns", "rows"))
    assert strategy is not None
    assert [p.servers for p in strategy] == [(0, 1, 2, 3)] * 2 + [(4, 5, 6, 7)] * 2
    assert [p.degrees for p in strategy] == [Degrees(2, "columns", 2), Degrees(2, "rows", 2)] * 2
    assert split_pipeline(op_graph, cluster, 8, 2, 4, ("columns",)) is None
    with refused(ValueError, "stages", 3, 8):
        split_pipeline(op_graph, cluster, 3, 2, 4, ("columns",))
    starts = (strategy,)
    problem = SearchProblem(
        op_graph, cluster, None, starts, dimensions=("columns", "rows"), micro_batches=4
    )
    assert strategy in expert_strategies(problem).values()


def test_a_stage_nearer_the_end_holds_fewer_micro_batches() -> None:
    op_graph = chain(4, parameters=0, output=64 * 1000)
    cluster = Cluster(4, 2, 10.0)
    strategy = pipeline(op_graph, cluster, 4, 8)
    assert strategy is not None
    held = memory_by_server(op_graph, cluster, strategy, micro_batches=8)
    assert held == [4 * 8000, 3 * 8000, 2 * 8000, 8000]
    assert memory_by_server(op_graph, cluster, strategy, micro_batches=2) == [
        2 * 32000, 2 * 32000, 2 * 32000, 32000
    ]  # fmt: skip
    assert memory_by_server(op_graph, cluster, strategy) == [64000] * 4


def test_only_pipelines_that_fit_into_memory_are_offered() -> None:
    cluster = Cluster(4, 2, 10.0)
    # 3 GB of parameters and gradients each: two layers do not fit on one server of 4 GiB
    op_graph = chain(4, parameters=1_500_000_000, output=1000)
    found = pipelines(op_graph, cluster, (1, 4, 5, 64))
    assert {(len({p.servers for p in f.strategy}), f.micro_batches) for f in found} == {
        (4, 1), (4, 4), (4, 64)
    }  # fmt: skip
    for strategy, micro_batches in found:
        held = memory_by_server(op_graph, cluster, strategy, micro_batches=micro_batches)
        assert max(held) <= memory_limit(cluster)
    assert pipelines(op_graph, cluster, (4,), optimizer_factor=2.0) == ()


def test_more_micro_batches_make_an_even_pipeline_faster() -> None:
    op_graph = chain(4, flops=10**11, parameters=0, output=1000)
    cluster = Cluster(4, 2, 100.0)
    found = pipelines(op_graph, cluster, (1, 2, 4, 8))
    seconds = [
        predict_ideal_switch(op_graph, cluster, p.strategy, micro_batches=p.micro_batches)
        for p in found
        if len({placement.servers for placement in p.strategy}) == 4
    ]
    times = [estimate.iteration_s for estimate in seconds]
    assert times == sorted(times, reverse=True)
    assert len(times) == 4


def test_stages_on_different_numbers_of_servers_are_offered_where_they_are_faster() -> None:
    flops = (10**11, 2 * 10**11, 10**11)
    op_graph = graph(
        *(
            operator(f"o{i}", *([(i - 1, 8, 8)] if i else []), flops=size)
            for i, size in enumerate(flops)
        )
    )
    cluster = Cluster(4, 2, 100.0)
    found = pipelines(op_graph, cluster, (8,))
    assert [[p.servers for p in f.strategy] for f in found] == [
        [(0, 1), (0, 1), (2, 3)],
        [(0,), (1, 2), (3,)],
    ]
    equal, unequal = (
        predict_ideal_switch(op_graph, cluster, f.strategy, micro_batches=8) for f in found
    )
    assert unequal.iteration_s < 0.85 * equal.iteration_s
    assert unequal.iteration_s == pytest.approx(unequal.compute_s * 10 / 8, rel=0.01), "fill, drain"
    even = pipelines(chain(4, flops=10**11), cluster, (8,))
    assert all(len({len(p.servers) for p in f.strategy}) == 1 for f in even)
