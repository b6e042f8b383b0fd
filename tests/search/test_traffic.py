"""From placements to demand."""

from __future__ import annotations

import random

import pytest
from small_op_graphs import chain, graph, operator, random_graph, random_strategy

from torch_topoopt.plan import Demand, GroupDemand, PairDemand, Placement
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
    with pytest.raises(ValueError, match=r"layer0: \[7\] is not within 0..3"):
        demand(chain(1), (Placement("layer0", (7,)),), 4)


def test_transfers_take_every_sample_once() -> None:
    rng = random.Random(0)
    for _ in range(200):
        producer = tuple(sorted(rng.sample(range(10), rng.randint(1, 10))))
        consumer = tuple(sorted(rng.sample(range(10), rng.randint(1, 10))))
        a, b = len(producer), len(consumer)
        got = dict.fromkeys(consumer, 0)
        for source, target, parts in transfers(producer, consumer):
            assert source in producer
            assert source != target
            got[target] += parts
        for y, target in enumerate(consumer):
            x = producer.index(target) if target in producer else None
            local = 0 if x is None else max(0, min((x + 1) * b, (y + 1) * a) - max(x * b, y * a))
            assert got[target] + local == a
