"""The search's own simulator: changes priced like whole strategies, and how near the flow level."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused
from support.search_cases import coarse_simulator, wired
from support.small_op_graphs import (
    chain,
    embeddings,
    graph,
    one_all_reduce,
    operator,
    random_buckets,
    random_graph,
    random_hybrid_strategy,
    random_strategy,
)

from torch_topoopt import _core
from torch_topoopt.op_graph import GradientBuckets, MeasuredStep
from torch_topoopt.plan import Cluster, Degrees, Placement
from torch_topoopt.search.lowering import lower_ideal_switch, lower_job
from torch_topoopt.search.strategies import Strategy, data_parallel, whole_operators
from torch_topoopt.sim import predict

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph


def changed(rng: random.Random, strategy: Strategy, others: list[Strategy], most: int) -> Strategy:
    """Some operators of `strategy` as they are in one of `others`."""
    other = rng.choice(others)
    chosen = set(rng.sample(range(len(strategy)), rng.randint(0, most)))
    return tuple(b if i in chosen else a for i, (a, b) in enumerate(zip(strategy, other)))  # noqa: B905


def placeable(op_graph: OpGraph, strategy: Strategy, micro_batches: int, servers: int) -> bool:
    """Whether the stages of this pipeline follow each other."""
    producers = [[o.producer for o in op.operands] for op in op_graph.operators]
    try:
        _core.micro_batches_in_flight(strategy, producers, servers, micro_batches)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("seed", "operators", "servers", "micro_batches"),
    [(0, 12, 6, 1), (1, 40, 8, 1), (2, 5, 4, 1), (3, 25, 12, 1), (4, 9, 4, 4), (5, 14, 6, 3)],
)
def test_a_change_costs_what_the_whole_strategy_costs_bit_for_bit(
    seed: int, operators: int, servers: int, micro_batches: int
) -> None:
    rng = random.Random(seed)
    op_graph = random_graph(rng, operators, splits=True)
    if seed % 2:
        op_graph = random_buckets(rng, op_graph)
    cluster = Cluster(servers, 2, 10.0)
    if micro_batches == 1:
        others = [random_hybrid_strategy(rng, op_graph, servers) for _ in range(20)]
    else:
        others = [data_parallel(op_graph, servers)]
        others += [random_stages(rng, op_graph, servers) for _ in range(20)]
    network = wired(op_graph, cluster)
    changes = coarse_simulator(op_graph, cluster, network, others, micro_batches)
    whole = coarse_simulator(op_graph, cluster, network, others, micro_batches)
    current = others[0]
    changes.run(current)
    compared = 0
    while compared < 700:
        proposal = changed(rng, current, others, max(1, operators // 4))
        if not placeable(op_graph, proposal, micro_batches, servers):
            proposal = rng.choice(others)
        keep = rng.random() < 0.3
        assert changes.propose(proposal, keep) == whole.run(proposal)
        current = proposal if keep else current
        compared += 1
    assert whole.steps_simulated == whole.full_steps


def test_only_what_follows_a_change_is_simulated() -> None:
    op_graph = chain(40)
    cluster = Cluster(4, 2, 10.0)
    everywhere = data_parallel(op_graph, 4)
    alone = whole_operators(op_graph, cluster, set(range(40)))
    coarse = coarse_simulator(op_graph, cluster, wired(op_graph, cluster), [everywhere, alone])
    coarse.run(everywhere)
    for i in (39, 20, 9):
        before = coarse.steps_simulated
        coarse.propose((*everywhere[:i], alone[i], *everywhere[i + 1 :]))
        assert 80 - i < coarse.steps_simulated - before <= 80 - i + 8  # states are kept every 8


def random_stages(rng: random.Random, op_graph: OpGraph, servers: int) -> Strategy:
    """Two stages on two parts of the servers."""
    cut, first = rng.randint(0, len(op_graph.operators)), rng.randint(1, servers - 1)
    parts = tuple(range(first)), tuple(range(first, servers))
    return tuple(Placement(op.name, parts[i >= cut]) for i, op in enumerate(op_graph.operators))


def both(
    op_graph: OpGraph, cluster: Cluster, strategy: Strategy, micro_batches: int = 1
) -> tuple[float, float]:
    """Seconds by the coarse simulator and at flow level."""
    network = wired(op_graph, cluster)
    coarse = coarse_simulator(op_graph, cluster, network, [strategy], micro_batches)
    flow = predict(op_graph, cluster, network, strategy, micro_batches=micro_batches)
    return coarse.run(strategy), flow.iteration_s


@pytest.mark.parametrize("servers", [2, 3, 4, 6, 8])
def test_where_nothing_shares_a_link_it_is_the_flow_level(servers: int) -> None:
    cluster = Cluster(servers, 1 if servers == 2 else 2, 10.0)
    layers = chain(5)
    everywhere = data_parallel(layers, servers)
    whole = whole_operators(layers, cluster, set(range(5)))
    reduce = one_all_reduce(10**7)
    buckets = GradientBuckets(first_bytes=10**6, cap_bytes=3 * 10**6)  # one, three, one layers
    bucketed = replace(layers, gradient_buckets=buckets, measured_step=MeasuredStep(0.5, 2.0, 3.0))
    for op_graph, strategy in (
        (reduce, data_parallel(reduce, servers)),
        (layers, everywhere),
        (layers, whole),
        (bucketed, everywhere),
    ):
        coarse, flow = both(op_graph, cluster, strategy)
        assert coarse == pytest.approx(flow, rel=1e-9)


def test_a_pipeline_of_two_stages_is_that_of_the_flow_level() -> None:
    op_graph = chain(8, flops=10**10)
    stages = tuple(Placement(op.name, (i // 4,)) for i, op in enumerate(op_graph.operators))
    cluster = Cluster(2, 1, 100.0)
    alone, _ = both(op_graph, cluster, stages)
    for micro_batches in (1, 2, 4, 8):
        coarse, flow = both(op_graph, cluster, stages, micro_batches)
        assert coarse == pytest.approx(flow, rel=1e-3)
    assert coarse < 0.75 * alone


def test_transfers_wait_for_each_other_and_all_reduces_for_transfers() -> None:
    # Two tensors of 1 GB over the one link of 1 GB/s, and 1 GB of gradients in each direction.
    op_graph = graph(
        operator("a", output=10**9, parameters=10**9),
        operator("b", output=10**9),
        operator("c", (0, 10**9, 0), (1, 10**9, 0)),
    )
    strategy = (Placement("a", (0, 1)), Placement("b", (0,)), Placement("c", (1,)))
    cluster = Cluster(2, 1, 8.0)
    coarse, _ = both(op_graph, cluster, strategy)
    # Half of a's tensor is on server 1 already; 2 (k - 1) / k = 1 for the AllReduce.
    assert coarse == pytest.approx(0.5 + 1.0 + 1.0, rel=1e-4)


def test_a_ring_moves_in_step_where_transfers_take_one_of_its_links_after_the_other() -> None:
    # 3 s of AllReduce in each direction, and a gradient of 1 s over two links of one of them.
    op_graph = graph(
        operator("a"),
        operator("b", (0, 1, 10**9)),
        operator("c", (1, 1, 10**9)),
        operator("d", (2, 1, 0), parameters=4 * 10**9),
    )
    cluster = Cluster(4, 2, 8.0)
    first, second, third, _ = wired(op_graph, cluster).groups[0].rings[0].servers
    strategy = (
        Placement("a", (first,)),
        Placement("b", (second,)),
        Placement("c", (third,)),
        Placement("d", (0, 1, 2, 3)),
    )
    coarse, flow = both(op_graph, cluster, strategy)
    assert flow == pytest.approx(3 + 1 + 1, rel=1e-3)
    assert coarse == pytest.approx(flow, rel=1e-3)


def test_a_transfer_shares_its_link_with_the_all_reduce_under_way() -> None:
    # 1 s of AllReduce, and a gradient of 0.5 s on the same link, for which `a` waits.
    a = operator("a", backward_flops=10**15)
    op_graph = graph(
        a, operator("b", (0, 1, 5 * 10**8)), operator("c", (1, 1, 0), parameters=10**9)
    )
    strategy = (Placement("a", (0,)), Placement("b", (1,)), Placement("c", (0, 1)))
    cluster = Cluster(2, 1, 8.0)
    alone_s, _ = both(graph(a), cluster, strategy[:1])
    assert alone_s > 1
    coarse, flow = both(op_graph, cluster, strategy)
    assert flow > alone_s + 1
    assert coarse == pytest.approx(flow, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_random_strategies_are_ranked_as_at_flow_level(seed: int) -> None:
    rng = random.Random(seed)
    op_graph = random_graph(rng, 12)
    cluster = Cluster(6, 4, 10.0)
    network = wired(op_graph, cluster)
    strategies = [random_strategy(rng, op_graph, 6) for _ in range(40)]
    coarse = coarse_simulator(op_graph, cluster, network, strategies)
    ours = [coarse.run(strategy) for strategy in strategies]
    flow = [predict(op_graph, cluster, network, s).iteration_s for s in strategies]
    agree = sum((ours[i] < ours[j]) == (flow[i] < flow[j]) for i in range(40) for j in range(i))
    assert agree > 0.85 * 40 * 39 / 2
    assert all(0.5 < a / b < 2 for a, b in zip(ours, flow, strict=True))


def test_an_ideal_switch_is_a_network_too() -> None:
    op_graph = embeddings(4, table_bytes=10**7)
    cluster = Cluster(4, 2, 10.0)
    job = lower_job(op_graph, cluster, {Degrees(4), Degrees(1)})
    switch = lower_ideal_switch(cluster)
    everywhere = data_parallel(op_graph, 4)
    coarse = _core.CoarseSimulator(job, switch).run(everywhere)
    assert coarse == pytest.approx(
        _core.simulate_iteration(job, switch, everywhere).iteration_s, rel=1e-6
    )


def test_what_has_no_cost_or_no_base_is_refused() -> None:
    op_graph = chain(3)
    cluster = Cluster(4, 2, 10.0)
    coarse = coarse_simulator(
        op_graph, cluster, wired(op_graph, cluster), [data_parallel(op_graph, 4)]
    )
    with refused(ValueError, "operators", "first"):
        coarse.propose(data_parallel(op_graph, 4))
    with refused(ValueError, "operator 0", 2):
        coarse.run(tuple(Placement(op.name, (0, 1)) for op in op_graph.operators))
    with refused(ValueError, 1, 3):
        coarse.run(data_parallel(op_graph, 4)[:1])
