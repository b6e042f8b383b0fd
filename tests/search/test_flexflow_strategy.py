"""FlexFlow's text format: published files, every strategy it can say and back, bad files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused
from support.small_op_graphs import graph, operator

from torch_topoopt.op_graph import OpGraph, Split
from torch_topoopt.plan import Placement
from torch_topoopt.search.flexflow_strategy import FlexFlowError, flexflow_text, parse_flexflow
from torch_topoopt.search.strategies import Strategy, data_parallel
from torch_topoopt.search.strategy_space import check_strategy

if TYPE_CHECKING:
    import random

SPLITS = (Split("columns", 840, "whole"), Split("attribute", 840, "part"))


def net(**dimensions: int) -> OpGraph:
    """Operators whose outputs have that many dimensions."""
    return graph(
        *(
            replace(operator(name, splits=SPLITS), output_dimensions=count)
            for name, count in dimensions.items()
        ),
        model="net",
    )


def test_a_file_as_flexflow_writes_it_is_read() -> None:
    op_graph = net(Conv2D_100=4, Flat_101=2, Dense_102=2, Softmax_103=2)
    # images: width, height, channels, samples; matrices: features, samples
    text = (
        "4\nConv2D_100\n0\n4\n1\t1\t1\t4\t\n4\n0\t1\t2\t3\t\nDense_102\n0\n2\n2\t2\t\n4\n"
        "0\t1\t2\t3\t\nFlat_101\n0\n2\n1\t4\t\n4\n3\t2\t1\t0\t\nSoftmax_103\n0\n2\n1\t1\t\n1\n2\t\n"
    )
    read = parse_flexflow(text, op_graph, 4)
    assert read == (
        Placement("Conv2D_100", (0, 1, 2, 3)),
        Placement("Flat_101", (3, 2, 1, 0)),
        Placement("Dense_102", (0, 1, 2, 3), columns=2),
        Placement("Softmax_103", (2,)),
    )
    assert check_strategy(op_graph, 4, read) == read
    assert parse_flexflow(flexflow_text(op_graph, read), op_graph, 4) == read


def test_features_are_inside_of_positions_in_the_file() -> None:
    op_graph = net(layer=3)
    # parts: 2 of the features, 3 of the positions, 1 of the samples; features count fastest
    read = parse_flexflow("1 layer 0 3 2 3 1 6 10 11 12 13 14 15", op_graph, 16)
    assert read == (Placement("layer", (10, 12, 14, 11, 13, 15), columns=2, attribute=3),)
    assert flexflow_text(op_graph, read).split()[8:] == ["10", "11", "12", "13", "14", "15"]


def test_what_is_not_listed_is_data_parallel() -> None:
    op_graph = net(a=2, b=2)
    assert parse_flexflow("0", op_graph, 4) == data_parallel(op_graph, 4)
    read = parse_flexflow("1 b 0 1 1 1 3", op_graph, 4)
    assert read == (Placement("a", (0, 1, 2, 3)), Placement("b", (3,)))


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_every_strategy_that_it_can_say_comes_back(rng: random.Random) -> None:
    op_graph = net(**{f"op{i}": rng.randint(0, 4) for i in range(rng.randint(1, 5))})
    strategy: Strategy = ()
    for op in op_graph.operators:
        columns = rng.randint(1, 3) if op.output_dimensions != 1 else 1
        attribute = rng.randint(1, 3) if op.output_dimensions in (0, 3, 4) else 1
        count = rng.randint(1, 3) * columns * attribute
        servers = tuple(rng.sample(range(30), count))
        strategy += (Placement(op.name, servers, columns=columns, attribute=attribute),)
    assert parse_flexflow(flexflow_text(op_graph, strategy), op_graph, 30) == strategy


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", ("line", "operators")),
        ("two", ("line", "two")),
        ("-1", (-1, 0)),
        ("1 c 0 1 1 1 0", ("operator 1", 1)),
        ("2 a 0 1 1 1 0 a 0 1 1 1 0", ("operator 2", 2, "twice")),
        ("1 a 1 1 1 1 0", (1, 0)),
        ("1 a 0 5 1 1 1 1 1 1 0", (5, 1, 4)),
        ("1 a 0 2 1 0 1 0", (0, 1)),
        ("1 a 0 4 2 1 1 1 2 0 1", (2, "width", "height")),
        ("1 a 0 2 1 4 2 0 1", (2, 4)),
        ("1 a 0 2 1 4 0", (0, 4)),
        ("1 a 0 2 1 2 2 0", ("ends", "device")),
        ("1 a 0 2 1 2 2 0 x", ("x", "device")),
        ("1 a 0 2 1 2 2 0 1 0.5", ("operator", 0.5)),
    ],
)
def test_a_file_that_is_wrong_is_answered_with_the_place(
    text: str, tokens: tuple[object, ...]
) -> None:
    with refused(FlexFlowError, *tokens) as error:
        parse_flexflow(text, net(a=2, b=2), 4)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("placement", "tokens"),
    [
        (Placement("a", (0, 1), rows=2), (2, "JSON")),
        (Placement("a", (0, 1), experts=2), ("experts", 2)),
        (Placement("a", (0, 1), attribute=2), (2, "attribute")),
        (Placement("a b", (0,)), ("white space",)),
        (Placement("a" * 64, (0,)), (63,)),
    ],
)
def test_what_the_format_cannot_say_is_named(
    placement: Placement, tokens: tuple[object, ...]
) -> None:
    with refused(FlexFlowError, *tokens):
        flexflow_text(net(a=2), (placement,))
