"""Strategies to start from that split parameters and positions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused
from support.search_cases import memory_by_server
from support.small_op_graphs import chain, graph, operator, random_graph, random_hybrid_strategy

from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Cluster, Degrees
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.lowering import memory_limit
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.pipelines import pipelines
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.search.starts.split_layers import split_starts, split_strategy
from torch_topoopt.search.strategies import data_parallel, starting_strategies
from torch_topoopt.search.strategy_space import DIMENSIONS, check_strategy
from torch_topoopt.search.traffic import demand, shared_reads, transfer_count, transfers
from torch_topoopt.sim import predict
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    import random

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Network
    from torch_topoopt.search.strategies import Strategy

WHOLE, PART = Split("columns", 64, "whole"), Split("columns", 64, "part")
ROWS, POSITIONS = Split("rows", 64, "part"), Split("attribute", 64, "part")
GIB = 2**30


def block(batch_size: int = 64, parameters: int = 10**6, flops: int = 10**9) -> OpGraph:
    """A shortcut around a norm, two projections of it, a product of these and a way back."""
    size = 64 * 1000
    layer = {"parameters": parameters, "flops": flops, "output": size}
    return graph(
        operator("in", output=size, splits=(POSITIONS,)),
        operator("norm", (0, size, size, 1), output=size, splits=(POSITIONS,)),
        operator("q", (1, size, size, 1), splits=(WHOLE, ROWS, POSITIONS), **layer),
        operator("k", (1, size, size, 1), splits=(WHOLE, ROWS, POSITIONS), **layer),
        operator("mix", (2, size, size), (3, size, size), output=size, splits=(PART,)),
        operator("out", (4, size, size), splits=(WHOLE, ROWS, POSITIONS), **layer),
        operator("add", (0, size, size, 1), (5, size, size), splits=(PART, POSITIONS)),
        batch_size=batch_size,
    )


def degrees(op_graph: OpGraph, parts: int, samples: int, servers: int = 4) -> dict[str, Degrees]:
    chosen = {i for i, op in enumerate(op_graph.operators) if op.parameter_bytes}
    everyone = (tuple(range(servers)),) * len(op_graph.operators)
    made = split_strategy(op_graph, everyone, parts, chosen, samples, DIMENSIONS)
    check_strategy(op_graph, servers, made)
    return {placement.operator: placement.degrees for placement in made}


def test_columns_are_followed_by_rows_and_the_rest_shares_samples() -> None:
    columns, rows = Degrees(2, "columns", 2), Degrees(2, "rows", 2)
    assert degrees(block(), 2, 64) == {
        **dict.fromkeys(("in", "norm", "add"), Degrees(4)),
        **dict.fromkeys(("q", "k", "mix"), columns),
        "out": rows,
    }


def test_what_is_between_products_of_experts_stays_with_them() -> None:
    size = 64 * 1000
    experts = Split("experts", 8, "part")
    op_graph = graph(
        operator("in", output=size),
        operator("up", (0, size, size), parameters=10**6, output=size, splits=(experts, WHOLE)),
        operator("act", (1, size, size, 1), output=size, splits=(experts, PART)),
        operator("gate", (2, size, size), (1, size, size, 1), output=size, splits=(experts, PART)),
        operator("down", (3, size, size), parameters=10**6, output=size, splits=(experts, ROWS)),
        operator("out", (4, size, size), output=size, splits=(PART,)),
        batch_size=64,
    )
    everyone = ((0, 1, 2, 3),) * len(op_graph.operators)
    made = split_strategy(op_graph, everyone, 4, {1, 4}, 64, DIMENSIONS, "experts")
    of_experts = {p.operator for p in made if p.experts == 4}
    assert of_experts == {"up", "act", "gate", "down"}
    pairs = split_strategy(op_graph, everyone, 4, {1, 4}, 64, DIMENSIONS)
    assert {p.operator: p.parameter_kind for p in pairs} == {
        **{"in": None, "up": "columns", "act": "columns", "gate": "columns", "down": "rows"},
        "out": None,
    }


def test_between_a_pair_of_split_layers_nothing_moves() -> None:
    op_graph = block()
    everyone = ((0, 1, 2, 3),) * 7
    made = split_strategy(op_graph, everyone, 4, {2, 3, 5}, 64, DIMENSIONS)
    size = 64 * 1000
    asked = demand(op_graph, made, 4)
    assert asked.groups == ()
    # every pair: the norm's samples and their gradient, the partial sums and theirs
    assert {pair.size_bytes for pair in asked.pairs} == {size // 4 * 4}
    assert len(asked.pairs) == 12


def test_positions_are_split_where_there_are_fewer_samples_than_servers() -> None:
    found = degrees(block(batch_size=2), 2, 2)
    assert found["norm"] == Degrees(2, attribute=2)
    assert found["q"] == Degrees(2, "columns", 2)
    alone = degrees(block(batch_size=1), 4, 1)
    assert alone["add"] == Degrees(1, attribute=4)
    assert degrees(chain(2), 1, 3, servers=6)["layer0"] == Degrees(3), "no positions to split"


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_what_is_offered_is_legal_and_counted(rng: random.Random) -> None:
    servers = rng.choice([2, 4, 6, 8])
    op_graph = replace(random_graph(rng, 6, splits=True), batch_size=rng.choice([1, 2, 3, 64]))
    cluster = Cluster(servers, 2 if servers > 2 else 1, 10.0)
    for start in planning_starts(SearchProblem(op_graph, cluster, dimensions=DIMENSIONS)):
        check_strategy(op_graph, servers, start)
        assert max(memory_by_server(op_graph, cluster, start)) <= memory_limit(cluster)
    strategy = random_hybrid_strategy(rng, op_graph, servers)
    sent = sum(
        len(
            transfers(
                op_graph.operators[r.readers[0]], strategy[r.producer], strategy[r.readers[0]]
            )
        )
        for r in shared_reads(op_graph, strategy)
    )
    assert sent == transfer_count(op_graph, strategy)


def test_layers_that_fit_nowhere_are_split() -> None:
    cluster = Cluster(4, 2, 10.0)  # of 4 GiB
    large = block(parameters=5 * GIB // 2)  # and as much for the gradients
    with refused(ValueError, "bytes", "memory"):
        starting_strategies(large, cluster)
    (start, *_) = planning_starts(SearchProblem(large, cluster, dimensions=DIMENSIONS))
    assert {p.parameter for p in start if p.operator in ("q", "k", "out")} == {4}
    with refused(ValueError, "bytes", "memory"):
        planning_starts(SearchProblem(large, cluster))


def test_what_is_much_slower_or_makes_too_many_transfers_is_not_offered() -> None:
    small = block(parameters=8, flops=0)  # nothing to gain from splitting it
    cluster = Cluster(4, 2, 10.0)
    others = starting_strategies(small, cluster)
    assert data_parallel(small, 4) in others
    assert split_starts(SearchProblem(small, cluster, dimensions=DIMENSIONS), others) == ()
    large = block(parameters=GIB // 4)
    assert split_starts(SearchProblem(large, cluster, dimensions=DIMENSIONS), ())
    found = split_starts(SearchProblem(large, cluster, dimensions=DIMENSIONS, max_transfers=0), ())
    assert all(p.parameter == 1 for start in found for p in start)


def test_what_fits_only_with_many_transfers_is_offered_and_not_called_too_large() -> None:
    cluster = Cluster(4, 2, 10.0)  # of 4 GiB
    large = block(parameters=5 * GIB // 2)  # fits in four parts, by columns or rows
    free = split_starts(SearchProblem(large, cluster, dimensions=DIMENSIONS), ())
    count = min(transfer_count(large, start) for start in free)
    assert count > 4
    some = split_starts(
        SearchProblem(large, cluster, dimensions=DIMENSIONS, max_transfers=count // 2), ()
    )
    assert [transfer_count(large, start) for start in some] == [count]
    with refused(ValueError, "transfers", count, 0):
        split_starts(SearchProblem(large, cluster, dimensions=DIMENSIONS, max_transfers=0), ())
    other = (data_parallel(large, 4),)
    assert (
        split_starts(SearchProblem(large, cluster, dimensions=DIMENSIONS, max_transfers=0), other)
        == ()
    )


def test_a_plan_is_found_for_fewer_samples_than_servers() -> None:
    found = plan(
        block(batch_size=2), Cluster(4, 2, 10.0), PlanningOptions(evaluations=50, rounds=1)
    )
    check_strategy(block(batch_size=2), 4, found.strategy)
    with refused(ValueError, 2, 4):
        plan(
            block(batch_size=2),
            Cluster(4, 2, 10.0),
            PlanningOptions(strategy_space="data-parallel"),
        )


def test_stages_hold_large_operators_whole_or_split_where_samples_do_not_fit() -> None:
    cluster = Cluster(4, 2, 10.0)  # of 4 GiB
    tables = chain(8, parameters=3 * GIB // 4, output=1000)  # 1.5 GiB each with gradients
    whole = {len({p.servers for p in f.strategy}): f for f in pipelines(tables, cluster, (4,))}
    assert any(len(p.servers) == 1 for f in whole.values() for p in f.strategy)
    layers = graph(
        *(
            operator(f"l{i}", *([(i - 1, 8, 8)] if i else []), parameters=3 * GIB, splits=(WHOLE,))
            for i in range(2)
        )
    )
    assert pipelines(layers, cluster, (4,)) == ()
    (split,) = pipelines(layers, cluster, (4,), dimensions=DIMENSIONS)
    assert [(p.servers, p.columns) for p in split.strategy] == [((0, 1), 2), ((2, 3), 2)]


def test_rounds_begin_on_the_network_of_a_start_that_is_faster_on_its_own() -> None:
    """Large layers in pairs: servers that exchange samples, and groups that share parameters."""
    size = 10**7
    layers = [operator("in", output=size)]
    for i in range(8):
        splits = (WHOLE, ROWS)
        layers.append(operator(f"l{i}", (i, size, size), parameters=10**8, splits=splits))
    op_graph, cluster = graph(*layers), Cluster(16, 4, 10.0, accelerator="a100")
    starts = planning_starts(SearchProblem(op_graph, cluster, dimensions=DIMENSIONS))
    options = {"evaluations": 0, "rounds": 1}

    def own(start: Strategy) -> Network:
        return find_network(cluster, demand(op_graph, start, 16))

    default = own(data_parallel(op_graph, 16))
    on_default = min(predict(op_graph, cluster, default, s).iteration_s for s in starts)
    on_own = min(predict(op_graph, cluster, own(s), s).iteration_s for s in starts)
    assert on_own < 0.9 * on_default
    made = plan(op_graph, cluster, PlanningOptions(**options))  # type: ignore[arg-type]
    assert made.rounds[0].strategy_s <= on_own * (1 + 1e-9)
    kept = plan(op_graph, cluster, PlanningOptions(ablation="search-only", **options))  # type: ignore[arg-type]
    kept_s = kept.rounds[0].strategy_s
    assert made.rounds[0].strategy_s <= kept_s * (1 + 1e-9) <= on_default * (1 + 2e-9)
    assert kept.network.links == default.links
