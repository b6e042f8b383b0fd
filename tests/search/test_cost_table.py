"""Measured costs replace estimates: exactly where they were measured, sensibly elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.refusals import refused
from support.small_op_graphs import graph, operator

from torch_topoopt.op_graph import MeasuredCost, OpGraph, Split
from torch_topoopt.plan import Degrees
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.profile.cost_table import CostPoint, CostTable, OperatorCost, with_costs
from torch_topoopt.search.accelerators import accelerator, estimated_seconds, operator_seconds
from torch_topoopt.search.shards import shard_cost

A100 = accelerator("a100")
POINTS = (CostPoint(4, 1e-3, 2e-3), CostPoint(16, 3e-3, 8e-3))


def layers() -> OpGraph:
    return graph(
        *(operator(f"layers.{i}.dense", flops=10**11, memory=10**8) for i in range(3)),
        operator("head", flops=10**11, memory=10**8),
        batch_size=64,
    )


def table(*costs: OperatorCost) -> CostTable:
    return CostTable(1, "a device", costs or (OperatorCost("layers.*", POINTS),)).validate()


def test_a_measured_operator_takes_what_was_measured_and_others_the_estimate() -> None:
    measured = with_costs(layers(), table())
    one = measured.operators[1]
    assert operator_seconds(A100, one, 64 / 4) == pytest.approx((1e-3, 2e-3))
    assert operator_seconds(A100, one, 64 / 16) == pytest.approx((3e-3, 8e-3))
    head = measured.operators[3]
    assert operator_seconds(A100, head, 4) == estimated_seconds(A100, head, 4)


def test_between_two_points_it_is_interpolated_and_beyond_them_it_follows_the_estimate() -> None:
    one = with_costs(layers(), table()).operators[0]
    assert operator_seconds(A100, one, 64 / 8) == pytest.approx(((1e-3 * 3e-3) ** 0.5, 4e-3))
    for samples, nearest, seconds in ((1, 4, (1e-3, 2e-3)), (64, 16, (3e-3, 8e-3))):
        here = estimated_seconds(A100, one, 64 / samples)
        there = estimated_seconds(A100, one, 64 / nearest)
        expected = [s * a / b for s, a, b in zip(seconds, here, there, strict=True)]
        assert operator_seconds(A100, one, 64 / samples) == pytest.approx(expected)


def test_a_part_of_an_operator_is_as_much_faster_as_it_is_estimated_to_be() -> None:
    columns = (Split("columns", 64, "whole"),)
    plain = replace(layers().operators[0], splits=columns)
    points = (MeasuredCost(4.0, 3e-3, 8e-3),)
    measured = replace(plain, measured=points)
    degrees = Degrees(sample=4, kind="columns", parameter=2)
    estimate = shard_cost(A100, plain, degrees, 1, 1)
    cost = shard_cost(A100, measured, degrees, 1, 1)
    whole = estimated_seconds(A100, plain, 4)
    assert cost[0] == pytest.approx(estimate[0] * 3e-3 / whole[0])
    assert cost[1] == pytest.approx(estimate[1] * 8e-3 / whole[1])
    assert cost[2:] == estimate[2:]


def test_the_first_entry_that_covers_an_operator_counts() -> None:
    exact = OperatorCost("layers.1.dense", (CostPoint(4, 5.0, 6.0),))
    by_kind = OperatorCost("*", POINTS, kind="test")
    measured = with_costs(layers(), table(exact, by_kind))
    assert operator_seconds(A100, measured.operators[1], 16) == (5.0, 6.0)
    assert operator_seconds(A100, measured.operators[3], 16) == pytest.approx((1e-3, 2e-3))


def test_an_entry_that_covers_nothing_is_an_error() -> None:
    with refused(ValueError, "costs[0].operator", "stem"):
        with_costs(layers(), table(OperatorCost("stem", POINTS)))


def test_documents_survive_a_round_trip() -> None:
    assert CostTable.from_json(table().to_json()) == table()
    measured = with_costs(layers(), table())
    assert OpGraph.from_json(measured.to_json()) == measured
    assert "measured" not in layers().to_json()


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({"costs": []}, ("costs", "CostTable")),
        ({"device": 3}, ("device",)),
        ({"colour": 1}, ("colour", "unknown")),
        ({"costs": [{"operator": "x", "points": []}]}, ("costs[0] (x).points",)),
        (
            {"costs": [{"operator": "x", "points": [{"samples": 0, "forward_s": 1}]}]},
            ("costs[0].points[0].backward_s", "missing"),
        ),
        (
            {"costs": [{"operator": "x", "points": [vars(CostPoint(0, 1.0, 1.0))]}]},
            ("points[0].samples", 0),
        ),
        (
            {"costs": [{"operator": "x", "points": [vars(CostPoint(4, -1.0, 1.0))]}]},
            ("points[0].forward_s", -1.0),
        ),
    ],
)
def test_a_malformed_table_is_one_line_that_names_the_field(
    change: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    document = {**json.loads(table().to_json()), **change}
    with refused(DocumentError, *tokens) as raised:
        CostTable.from_json(json.dumps(document))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("measured", "tokens"),
    [
        ((MeasuredCost(0.0, 1.0, 1.0),), ("measured[0].shards", 0.0, 0)),
        (
            (MeasuredCost(2.0, 1.0, 1.0), MeasuredCost(2.0, 1.0, 1.0)),
            ("measured[1].shards", 2.0, 0),
        ),
        ((MeasuredCost(1.0, -1.0, 1.0),), ("measured[0]", "negative")),
    ],
)
def test_an_op_graph_with_impossible_costs_is_refused(
    measured: Any, tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, *tokens):
        graph(replace(operator("x", flops=1), measured=measured))
