"""The space of strategies, and the checks that any strategy goes through before use."""

from __future__ import annotations

import pytest
from support.refusals import refused
from support.small_op_graphs import chain, graph, operator

from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.search.strategy_space import (
    DIMENSIONS,
    SplitChoice,
    arrangements,
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
    with refused(ValueError, "count", 3, 4):
        server_sets(4, 3)


def test_operators_without_a_batch_run_whole_or_everywhere() -> None:
    op_graph = graph(operator("a"), operator("b", splittable=False), batch_size=8)
    space = strategy_space(op_graph, 4)
    assert space.kind == (0, 1)
    assert [move.degrees for move in space.moves_of(0)] == [Degrees(1), Degrees(2), Degrees(4)]
    assert [move.degrees for move in space.moves_of(1)] == [Degrees(1), Degrees(4)]
    alone = strategy_space(op_graph, 1)
    assert alone.moves == ((SplitChoice(Degrees(1), ((0,),)),),)
    assert alone.kind == (0, 0)


def test_what_is_not_executable_is_not_in_the_space() -> None:
    op_graph = graph(operator("a"), operator("b"), operator("c"), batch_size=8)

    def executable(placement: Placement) -> bool:
        return placement.operator != "b" or len(placement.servers) == 4

    space = strategy_space(op_graph, 4, executable)
    assert space.moves_of(0) == space.moves_of(2) == strategy_space(op_graph, 4).moves[0]
    assert space.moves_of(1) == (SplitChoice(Degrees(4), ((0, 1, 2, 3),)),)
    with refused(ValueError, "executable", "a"):
        strategy_space(op_graph, 4, lambda _: False)


@pytest.mark.parametrize(
    ("strategy", "tokens"),
    [
        ((), (1, "operators")),
        ((Placement("other", (0,)),), (1, "operators")),
        ((Placement("layer0", ()),), ("layer0", "servers", "empty")),
        ((Placement("layer0", (0, 0)),), ("[0, 0]", "twice")),
        ((Placement("layer0", (0, 4)),), ("server 4", "0..3")),
        ((Placement("layer0", (-1,)),), ("server -1", "0..3")),
    ],
)
def test_a_strategy_that_does_not_fit_is_named(
    strategy: tuple[Placement, ...], tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        check_strategy(chain(1), 4, strategy)


LAYER = operator(
    "layer",
    parameters=8,
    splits=(
        Split("columns", 8, "whole"),
        Split("rows", 6, "part"),
        Split("attribute", 2, "part"),
    ),
)


def test_an_operator_moves_along_its_own_dimensions_into_even_parts() -> None:
    space = strategy_space(graph(LAYER, operator("plain")), 8, dimensions=DIMENSIONS)
    found = {move.degrees for move in space.moves_of(0)}
    assert {d for d in found if d.kind == "columns"} == {
        Degrees(s, "columns", p) for s in (1, 2, 4, 8) for p in (2, 4, 8) if s * p <= 8
    }
    assert {d.parameter for d in found if d.kind == "rows"} == {2}, "4 or 8 parts of 6 are uneven"
    assert {d.attribute for d in found} == {1, 2}
    assert all(move.degrees.sample == len(move.arrangements[0]) for move in space.moves_of(1))
    for move in space.moves_of(0):
        for servers in move.arrangements:
            placed = Placement.of("layer", servers, move.degrees)
            check_strategy(graph(LAYER), 8, (placed,))


def test_shards_of_the_same_parameters_or_of_the_same_samples_are_neighbours() -> None:
    assert arrangements(4, Degrees(2, "columns", 2)) == ((0, 1, 2, 3), (0, 2, 1, 3))
    pairs = arrangements(8, Degrees(2, "rows", 2))
    assert (0, 1, 2, 3) in pairs
    assert (0, 2, 1, 3) in pairs
    assert (0, 2, 4, 6) in pairs
    assert (0, 4, 2, 6) in pairs
    assert len(set(pairs)) == len(pairs)


def test_a_search_draws_from_samples_as_often_as_from_each_other_dimension() -> None:
    space = strategy_space(graph(LAYER), 8, dimensions=DIMENSIONS)
    placements, (groups,) = space.groups()
    assert len(set(placements)) == len(placements)
    assert len(placements) == sum(len(move.arrangements) for move in space.moves_of(0))
    assert sorted(number for group in groups for number in group) == list(range(len(placements)))
    found = [[placements[number] for number in group] for group in groups]
    alike = [{(len(p.servers), p.parameter_kind, p.attribute > 1) for p in g} for g in found]
    assert all(len(keys) == 1 for keys in alike)
    assert sum(kind is None and not split for ((_, kind, split),) in map(tuple, alike)) == 4


@pytest.mark.parametrize(
    ("placement", "tokens"),
    [
        (Placement("layer", (0, 1), columns=2, rows=2), ("columns", "rows")),
        (Placement("layer", (0, 1, 2), columns=2), (3, 2)),
        (Placement("layer", (0,), columns=0), ("columns", 0, 1)),
        (Placement("layer", (0, 1), experts=2), ("columns", 8, "rows")),
        (Placement("layer", (0, 1, 2, 3), rows=4), ("rows", 4, 6)),
        (Placement("layer", (0, 1, 2, 3), attribute=4), ("attribute", 2)),
        (Placement("layer", tuple(range(65))), (64, 65)),
    ],
)
def test_a_split_that_the_operator_does_not_allow_is_named(
    placement: Placement, tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens) as error:
        check_strategy(graph(LAYER), 80, (placement,))
    assert "\n" not in str(error.value)


def test_micro_batches_are_equal_and_their_stages_follow_each_other() -> None:
    op_graph = chain(3)
    line = tuple(Placement(f"layer{i}", (i,)) for i in range(3))
    assert check_strategy(op_graph, 3, line, micro_batches=64) == line
    with refused(ValueError, "micro_batches", 3, 64):
        check_strategy(op_graph, 3, line, micro_batches=3)
    wide = tuple(Placement(f"layer{i}", (0, 1, 2)) for i in range(3))
    with refused(ValueError, 2, 3, 32):
        check_strategy(op_graph, 3, wide, micro_batches=32)
    back = (Placement("layer0", (0,)), Placement("layer1", (1,)), Placement("layer2", (2, 0)))
    assert check_strategy(op_graph, 3, back) == back
    with refused(ValueError, "cycle"):
        check_strategy(op_graph, 3, back, micro_batches=2)  # 0 and 2 are one stage


def test_every_part_has_a_sample_of_every_micro_batch() -> None:
    space = strategy_space(graph(LAYER, batch_size=16), 8, dimensions=DIMENSIONS, micro_batches=8)
    moves = space.moves_of(0)
    assert {move.degrees.sample for move in moves} == {1, 2}
    assert {move.degrees.parameter for move in moves} >= {2, 4}
