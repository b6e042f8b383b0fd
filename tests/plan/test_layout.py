"""Layouts: their text, what they need, and plans that have one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import refused

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.layout import Layout, layout_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import Plan


def test_a_layout_in_words() -> None:
    layout = Layout(
        tensor=8, data=4, pipeline=2, interleave=2, sharding="parameters", state_shards=4,
        recompute="full", schedule="interleaved", micro_batches=4,
    )  # fmt: skip
    assert str(layout) == (
        "tensor 8 x data 4 x pipeline 2, schedule interleaved of 2 chunks a stage, parameters "
        "sharded over 4, full recomputation, 4 micro-batches of 1"
    )
    assert str(Layout()) == "one accelerator, 1 micro-batch of 1"
    some = Layout(
        data=2, pipeline=2, sharding="parameters", state_shards=2, reshard_blocks=(3, 3),
        recompute="full", recompute_blocks=(2, 0),
    )  # fmt: skip
    assert str(some) == (
        "data 2 x pipeline 2, schedule 1f1b, parameters sharded over 2, gathered again in 3 blocks "
        "a stage, full recomputation of 0 to 2 blocks a stage, 1 micro-batch of 1"
    )
    on_host = replace(some, reshard_blocks=(), recompute_blocks=(), offload="host")
    assert str(on_host) == (
        "data 2 x pipeline 2, schedule 1f1b, parameters sharded over 2, offloaded to the host, "
        "full recomputation, 1 micro-batch of 1"
    )
    cut = Layout(pipeline=2, cells=(3, 4))
    assert str(cut) == "pipeline 2, schedule 1f1b, chunks of 3 to 4 cells, 1 micro-batch of 1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensor=8", Layout(tensor=8, data=2, micro_batches=8)),
        ("data=16,micro_batch=1", Layout(data=16)),
        (
            "sharding=parameters, reshard=false",
            Layout(data=16, sharding="parameters", state_shards=16, reshard=False),
        ),
        (
            "sharding=parameters,offload=host",
            Layout(data=16, sharding="parameters", state_shards=16, offload="host"),
        ),
        (
            "pipeline=2,interleave=2,context=2",
            Layout(context=2, data=4, pipeline=2, interleave=2, schedule="interleaved",
                   micro_batches=4),
        ),
        ("pipeline=2,data=8,cells=5-4", Layout(data=8, pipeline=2, micro_batches=2, cells=(5, 4))),
        (
            "data=8,pipeline=2,recompute=full,recompute_blocks=3-0",
            Layout(data=8, pipeline=2, micro_batches=2, recompute="full", recompute_blocks=(3, 0)),
        ),
    ],
)  # fmt: skip
def test_dimensions_that_are_left_out_follow_from_the_others(text: str, expected: Layout) -> None:
    assert layout_from(text, 16, 16) == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("tensors=8", ("tensors", "tensor", "micro_batches")),
        ("tensor=eight", ("tensor", "'eight'")),
        ("tensor=0", ("tensor", 0)),
        ("tensor=-1", ("tensor", "'-1'")),
        ("reshard=yes", ("reshard", "'yes'")),
        ("sharding=all", ("sharding", "'all'", "'parameters'")),
        ("sharding=parameters,offload=cpu", ("offload", "'cpu'", "'host'")),
        ("sharding=optimizer,offload=host", ("offload", "parameters", "optimizer")),
        ("tensor=3", ("tensor=3", 15, 16)),
        ("data=16,micro_batch=4", (64, 16)),
        ("state_shards=4", ("state_shards", 4)),
        ("pipeline=2,cells=4", ("cells", 1, 2)),
        ("pipeline=2,cells=4-0", ("cells", 0)),
        ("pipeline=2,cells=4:3", ("cells", "'4:3'")),
        ("recompute_blocks=4", ("recompute_blocks", "none")),
        ("recompute=full,recompute_blocks=4-4", ("recompute_blocks", 2, 1)),
        ("sharding=gradients,reshard_blocks=4", ("reshard_blocks", "gradients", "true")),
        ("sharding=parameters,reshard=false,reshard_blocks=4", ("reshard_blocks", "false")),
        ("", ("''",)),
        ("tensor=" + "9" * 5000, ("tensor",)),
    ],
)
def test_a_text_that_is_no_layout_is_refused(text: str, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens):
        layout_from(text, 16, 16)


def test_a_plan_without_a_layout_keeps_its_text(ring_plan: Callable[..., Plan]) -> None:
    text = ring_plan(4).to_json()
    assert '"version": 5' in text
    assert "layout" not in text
    assert "inside" not in text


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({"layout": None}, ("layout", "'layouts'")),
        ({"strategy_space": "full"}, ("layout", "'full'")),
        ({"layout": Layout(data=2, micro_batches=16)}, ("layout", 2, 4)),
        ({"layout": Layout(data=4)}, ("layout", 4, 32)),
        ({"layout": Layout(data=4, state_shards=3, micro_batches=8)}, ("state_shards", 3)),
        (
            {"layout": Layout(data=4, micro_batches=8, recompute="full", recompute_blocks=(-1,))},
            ("recompute_blocks", -1),
        ),
    ],
)
def test_a_plan_and_its_layout_agree(
    change: dict[str, Any], tokens: tuple[object, ...], ring_plan: Callable[..., Plan]
) -> None:
    layout = Layout(data=4, micro_batches=8)
    plan = replace(
        ring_plan(4), version=6, strategy_space="layouts", layout=layout, micro_batches=8
    ).validate()
    assert type(plan).from_json(plan.to_json()) == plan
    seventh = {**plan.as_dict(), "version": 7, "layout": vars(layout).copy()}
    del seventh["layout"]["offload"]
    assert type(plan).from_json(json.dumps(seventh)) == replace(plan, version=7)
    older = {**seventh, "version": 6}
    del older["layout"]["recompute_blocks"], older["layout"]["reshard_blocks"]
    assert type(plan).from_json(json.dumps(older)) == plan
    with refused(DocumentError, *tokens):
        replace(plan, **change).validate()
