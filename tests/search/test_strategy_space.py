"""The space of strategies, and the checks that any strategy goes through before use."""

from __future__ import annotations

import pytest
from small_op_graphs import chain, graph, operator

from torch_topoopt.plan import Placement
from torch_topoopt.search.strategy_space import (
    check_strategy,
    server_sets,
    shard_counts,
    strategy_space,
)


def test_shard_counts_divide_the_servers_and_leave_a_sample_each() -> None:
    assert shard_counts(12, 1000) == (1, 2, 3, 4, 6, 12)
    assert shard_counts(12, 5) == (1, 2, 3, 4)
    assert shard_counts(7, 7) == (1, 7)


def test_server_sets_are_runs_and_strides_from_every_start() -> None:
    assert server_sets(4, 1) == ((0,), (1,), (2,), (3,))
    assert server_sets(4, 4) == ((0, 1, 2, 3),)
    assert set(server_sets(4, 2)) == {(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3)}
    for count in shard_counts(12, 99):
        for members in server_sets(12, count):
            assert len(members) == count
            assert list(members) == sorted(set(members))
    with pytest.raises(ValueError, match="count: 3 does not divide 4"):
        server_sets(4, 3)


def test_operators_without_a_batch_run_whole_or_everywhere() -> None:
    op_graph = graph(operator("a"), operator("b", splittable=False), batch_size=8)
    space = strategy_space(op_graph, 4)
    assert space.kind == (0, 1)
    assert [len(sets[0]) for sets in space.sets[0]] == [1, 2, 4]
    assert [len(sets[0]) for sets in space.sets[1]] == [1, 4]
    alone = strategy_space(op_graph, 1)
    assert alone.sets == ((((0,),),), (((0,),),))


def test_what_is_not_executable_is_not_in_the_space() -> None:
    op_graph = graph(operator("a"), operator("b"), operator("c"), batch_size=8)

    def executable(placement: Placement) -> bool:
        return placement.operator != "b" or len(placement.servers) == 4

    space = strategy_space(op_graph, 4, executable)
    of_operator = [space.sets[kind] for kind in space.kind]
    assert of_operator[0] == of_operator[2] == strategy_space(op_graph, 4).sets[0]
    assert of_operator[1] == (((0, 1, 2, 3),),)
    with pytest.raises(ValueError, match="executable: operator 'a' may run on no servers"):
        strategy_space(op_graph, 4, lambda _: False)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ((), "must place the 1 operators"),
        ((Placement("other", (0,)),), "must place the 1 operators"),
        ((Placement("layer0", ()),), "layer0.*servers: empty"),
        ((Placement("layer0", (0, 0)),), r"\[0, 0\] names a server twice"),
        ((Placement("layer0", (0, 4)),), "server 4 is not in 0..3"),
        ((Placement("layer0", (-1,)),), "server -1 is not in 0..3"),
    ],
)
def test_a_strategy_that_does_not_fit_is_named(
    strategy: tuple[Placement, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_strategy(chain(1), 4, strategy)
