"""A strategy as a document: what is written is read back, small, and wrong ones are named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.refusals import refused

from torch_topoopt.plan import Degrees, Placement, Plan, StrategyFile
from torch_topoopt.plan.codec import DocumentError


def strategy_file(*placements: Placement, **changes: Any) -> StrategyFile:
    values: dict[str, Any] = {"model": "m", "batch_size": 64, "servers": 8}
    return StrategyFile(StrategyFile.VERSION, strategy=placements, **{**values, **changes})


def test_only_what_is_split_is_written() -> None:
    written = strategy_file(
        Placement("whole", (3,)), Placement("wide", (0, 2, 1, 3), rows=2, attribute=2)
    )
    text = written.to_json()
    assert StrategyFile.from_json(text) == written
    assert json.loads(text)["strategy"] == [
        {"operator": "whole", "servers": [3]},
        {"operator": "wide", "servers": [0, 2, 1, 3], "rows": 2, "attribute": 2},
    ]
    assert "micro_batches" not in text
    several = strategy_file(Placement("a", (0,)), micro_batches=4)
    assert StrategyFile.from_json(several.to_json()).micro_batches == 4


def test_degrees_say_how_the_servers_are_shared() -> None:
    placement = Placement("a", tuple(range(8)), experts=2, attribute=2)
    assert placement.degrees == Degrees(2, "experts", 2, 2)
    assert (placement.sample, placement.parameter, placement.parameter_kind) == (2, 2, "experts")
    assert Placement.of("a", placement.servers, placement.degrees) == placement
    assert Placement("a", (1, 2)).degrees == Degrees(2)
    assert str(placement.degrees) == "samples in 2, experts in 2, attribute in 2"
    assert str(Degrees()) == "whole"


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"servers": 0}, ("servers", 0, 1)),
        ({"batch_size": 0}, ("batch_size", 0, 1)),
        ({"micro_batches": 3}, ("micro_batches", 3, 64)),
        ({"strategy": ()}, ("strategy", "operators")),
        ({"strategy": (Placement("a", (0,)),) * 2}, ("strategy[1].operator", "a", "empty")),
        ({"strategy": (Placement("a", (8,)),)}, ("strategy[0].servers", "server 8", "0..7")),
        ({"strategy": (Placement("a", (0, 0)),)}, ("strategy[0].servers", "[0, 0]")),
        ({"strategy": (Placement("a", (0, 1), rows=0),)}, ("strategy[0].rows", 0, 1)),
        (
            {"strategy": (Placement("a", (0, 1, 2), attribute=2),)},
            ("strategy[0].servers", 3, 2),
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_field(
    changes: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    values: dict[str, Any] = {"strategy": (Placement("a", (0,)),), **changes}
    text = strategy_file(*values.pop("strategy"), **values).to_json()
    with refused(DocumentError, *tokens):
        StrategyFile.from_json(text)


def test_plans_of_version_2_are_read_and_mean_the_same(ring_plan: Any) -> None:
    plan = ring_plan(4)
    document = json.loads(plan.to_json())
    assert "micro_batches" not in document
    document["version"] = 2
    old = Plan.from_json(json.dumps(document))
    assert (old.strategy, old.micro_batches) == (plan.strategy, 1)
    document["version"], document["micro_batches"] = 3, 0
    with refused(DocumentError, "micro_batches", 0):
        Plan.from_json(json.dumps(document))
