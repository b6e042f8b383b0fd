"""From placements to demand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.element_ownership import element_needs, element_transfers
from support.refusals import refused
from support.small_op_graphs import (
    chain,
    graph,
    operator,
    random_graph,
    random_placement,
    random_splits,
    random_strategy,
)

from torch_topoopt import _core
from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Demand, GroupDemand, PairDemand, Placement
from torch_topoopt.search.lowering import operand_needs
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.search.traffic import demand, transfers


def test_data_parallelism_asks_for_one_all_reduce_of_all_gradients() -> None:
    op_graph = chain(5, parameters=1000)
    assert demand(op_graph, data_parallel(op_graph, 4), 4) == Demand(
        (GroupDemand((0, 1, 2, 3), 5000),), ()
    )


def test_an_operator_on_one_server_sends_activations_and_receives_gradients() -> None:
    op_graph = graph(operator("table", parameters=10**9), operator("top", (0, 1200, 600)))
    strategy = (Placement("table", (1,)), Placement("top", (0, 1, 2)))
    assert demand(op_graph, strategy, 3) == Demand(
        (),
        (
            PairDemand(0, 1, 200),
            PairDemand(1, 0, 400),
            PairDemand(1, 2, 400),
            PairDemand(2, 1, 200),
        ),
    )


def test_groups_are_summed_per_server_set_and_largest_first() -> None:
    op_graph = graph(*(operator(f"o{i}", parameters=p) for i, p in enumerate((5, 7, 11, 13))))
    sets = ((0, 1), (0, 1, 2), (0, 1), (3,))
    strategy = tuple(Placement(f"o{i}", s) for i, s in enumerate(sets))
    assert demand(op_graph, strategy, 4).groups == (
        GroupDemand((0, 1), 16),
        GroupDemand((0, 1, 2), 7),
    )


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_move_never_exceed_what_operators_exchange(seed: int) -> None:
    rng = random.Random(seed)
    op_graph = random_graph(rng, 6)
    strategy = random_strategy(rng, op_graph, 6)
    asked = demand(op_graph, strategy, 6)
    most = sum(o.size_bytes + o.gradient_bytes for op in op_graph.operators for o in op.operands)
    assert sum(pair.size_bytes for pair in asked.pairs) <= most + len(asked.pairs)
    assert all(pair.source != pair.target for pair in asked.pairs)
    assert list(asked.pairs) == sorted(asked.pairs, key=lambda p: (p.source, p.target))


def test_a_server_that_does_not_exist_is_named() -> None:
    with refused(ValueError, "layer0", "servers", "server 7", "0..3"):
        demand(chain(1), (Placement("layer0", (7,)),), 4)


def test_the_parts_of_split_parameters_are_reduced_by_those_that_share_them() -> None:
    layer = operator("layer", parameters=1001, splits=(Split("columns", 4, "whole"),))
    placed = Placement("layer", (0, 1, 2, 3), columns=2)
    assert demand(graph(layer), (placed,), 4).groups == (
        GroupDemand((0, 2), 501),
        GroupDemand((1, 3), 501),
    )
    alone = Placement("layer", (3, 1, 2, 0), columns=4)
    assert demand(graph(layer), (alone,), 4).groups == ()


@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_what_moves_is_what_is_held_elsewhere_and_needed(rng: random.Random) -> None:
    op_graph = random_graph(rng, 2, splits=True)
    made, used = op_graph.operators
    producer, consumer = (random_placement(rng, op, rng.randint(1, 8)) for op in (made, used))
    expected: dict[tuple[int, int], float] = {}
    for (x, y), share in element_transfers(used, producer, consumer).items():
        source, target = producer.servers[x], consumer.servers[y]
        if source != target:
            expected[source, target] = expected.get((source, target), 0.0) + float(share)
    found: dict[tuple[int, int], float] = {}
    for source, target, share in transfers(used, producer, consumer):
        found[source, target] = found.get((source, target), 0.0) + share
    assert found == pytest.approx(expected)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_readers_that_need_the_same_elements_get_them_once(rng: random.Random) -> None:
    made = operator("made", splits=random_splits(rng))
    splits = random_splits(rng)
    gradients = [rng.choice([0, 6 * 10**8]) for _ in range(4)]
    readers = [
        operator(f"reader{i}", (0, 10**9, gradient, 1), splits=splits)
        for i, gradient in enumerate(gradients)
    ]
    some = [random_placement(rng, readers[0], rng.randint(1, 6)) for _ in range(2)]
    placements = [replace(rng.choice(some), operator=reader.name) for reader in readers]
    producer = random_placement(rng, made, rng.randint(1, 6))
    groups: dict[object, list[int]] = {}
    for i, placement in enumerate(placements):
        groups.setdefault(element_needs(readers[i], placement), []).append(i)
    expected: dict[tuple[int, int], float] = {}
    for members in groups.values():
        of_group = element_transfers(readers[members[0]], producer, placements[members[0]])
        for (x, y), share in of_group.items():
            source, target = producer.servers[x], placements[members[0]].servers[y]
            if source == target:
                continue
            returned = max(gradients[i] for i in members)
            for pair, size in (((source, target), 10**9), ((target, source), returned)):
                expected[pair] = expected.get(pair, 0.0) + float(share) * size
    asked = demand(graph(made, *readers), (producer, *placements), 6)
    found = {(pair.source, pair.target): pair.size_bytes for pair in asked.pairs}
    assert found == pytest.approx({pair: size for pair, size in expected.items() if size}, abs=1)


def test_queries_keys_and_values_gather_once_and_return_one_gradient() -> None:
    columns = (Split("columns", 4, "whole"),)
    three = [operator(name, (0, 4000, 4000, 1), splits=columns) for name in ("q", "k", "v")]
    block = graph(operator("norm"), *three, operator("shortcut", (0, 4000, 4000, 1)))
    servers = (0, 1, 2, 3)
    split = [Placement(name, servers, columns=4) for name in ("q", "k", "v")]
    strategy = (Placement("norm", servers), *split, Placement("shortcut", servers))
    pairs = demand(block, strategy, 4).pairs
    assert len(pairs) == 12, "each gets the samples of the other three"
    assert {pair.size_bytes for pair in pairs} == {1000 + 1000}
    elsewhere = (*strategy[:2], Placement("k", servers, columns=2), *strategy[3:])
    apart = {(p.source, p.target): p.size_bytes for p in demand(block, elsewhere, 4).pairs}
    assert apart[0, 1] == 2000 + 1000 + 1000, "servers 0 and 1 have the samples of one part of k"
    assert apart[0, 3] == 2000


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_every_shard_gets_all_that_it_needs_once_for_each_partial_sum(rng: random.Random) -> None:
    op_graph = random_graph(rng, 2, splits=True)
    made, used = op_graph.operators
    producer, consumer = (random_placement(rng, op, rng.randint(1, 8)) for op in (made, used))
    sums = producer.rows
    got = dict.fromkeys(consumer.servers, 0.0)
    needs = operand_needs(used, consumer)
    for transfer in _core.placement_transfers(producer, consumer, *needs):
        got[transfer.target] += transfer.fraction
    whole_parameter, whole_positions = operand_needs(used, consumer)
    parts = consumer.sample * (1 if whole_parameter else consumer.parameter)
    parts *= 1 if whole_positions else consumer.attribute
    assert list(got.values()) == pytest.approx([sums / parts] * len(consumer.servers))
