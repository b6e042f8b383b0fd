"""Time and memory of layouts, against closed forms of the literature."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from search.layouts.decoders import ELEMENT_BYTES, decoder, parameters
from support.refusals import refused

from torch_topoopt.plan.layout import SHARDINGS, Layout
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.layouts.links import LAUNCH_S, PORT_EFFICIENCY, Boxes, RankGroup
from torch_topoopt.search.layouts.memory import RUNTIME_BYTES, memory_of_stage, micro_batches_kept
from torch_topoopt.search.layouts.prices import LayoutPrice, LayoutPrices
from torch_topoopt.search.layouts.software import COMPILED, EAGER
from torch_topoopt.search.layouts.space import divisions, divisors, fastest_layouts, shardings
from torch_topoopt.search.layouts.state import ADAMW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.plan.layout import Recompute

BOXES = Boxes(8, 450e9, 400e9)


def prices(blocks: int = 4) -> LayoutPrices:
    return LayoutPrices(decoder(blocks), accelerator("h100:bf16"), BOXES, software=COMPILED)


def price(layout: Layout, blocks: int = 4) -> LayoutPrice:
    found = prices(blocks).price(layout)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sharding", "whole", "shared"),
    [("none", 16, 0), ("optimizer", 4, 12), ("gradients", 2, 14), ("parameters", 0, 16)],
)
def test_state_is_that_of_zero(sharding: str, whole: int, shared: int) -> None:
    """Rajbhandari et al. 2020, figure 1: bytes for each parameter with Adam and 16-bit weights."""
    shards = 1 if sharding == "none" else 8
    layout = Layout(data=8, sharding=sharding, state_shards=shards)  # type: ignore[arg-type]
    memory = price(layout).memory
    state = memory.parameters + memory.gradients + memory.optimizer
    assert state == pytest.approx(parameters() * (whole + shared / shards))
    assert (memory.gathered > 0) == (sharding == "parameters")
    assert memory.total - memory.allocated == RUNTIME_BYTES


def test_parameters_that_are_not_resharded_stay() -> None:
    layout = Layout(data=8, sharding="parameters", state_shards=8, reshard=False)
    assert price(layout).memory.gathered == parameters() * ELEMENT_BYTES
    assert price(replace(layout, reshard=True)).memory.gathered < parameters()


def test_less_is_kept_the_more_is_computed_again() -> None:
    found = [price(Layout(recompute=name)) for name in ("none", "selective", "full")]  # type: ignore[arg-type]
    assert sorted(one.times.step_s for one in found) == [one.times.step_s for one in found]
    kept = [one.memory.activations for one in found]
    assert kept == sorted(kept, reverse=True)


STAGES = [
    Layout(micro_batch=4),
    Layout(tensor=2, pipeline=2, micro_batches=4),
    Layout(pipeline=2, interleave=2, schedule="interleaved", micro_batches=4),
]


@pytest.mark.parametrize("kind", ["selective", "full"])
@pytest.mark.parametrize("layout", STAGES)
def test_every_block_that_is_computed_again_takes_time_and_leaves_memory(
    layout: Layout, kind: Recompute
) -> None:
    blocks = 8 // layout.pipeline
    found = [
        price(replace(layout, recompute=kind, recompute_blocks=(count,) * layout.pipeline), 8)
        for count in range(blocks + 1)
    ]
    for first, second in itertools.pairwise(found):
        assert first.times.step_s < second.times.step_s
        assert first.memory.activations > second.memory.activations
    for one, same in ((found[0], layout), (found[-1], replace(layout, recompute=kind))):
        assert one.times == pytest.approx(price(same, 8).times)
        assert one.memory == pytest.approx(price(same, 8).memory)


def test_every_block_that_is_gathered_again_leaves_memory_and_takes_links() -> None:
    slow = replace(BOXES, box_bytes_per_s=1e6)
    layout = Layout(data=16, sharding="parameters", state_shards=16)
    priced = LayoutPrices(decoder(8), accelerator("h100:bf16"), slow).price
    found = [priced(replace(layout, reshard_blocks=(count,))) for count in range(9)]
    for first, second in itertools.pairwise(found):
        assert first is not None
        assert second is not None
        assert first.memory.gathered >= second.memory.gathered
        assert first.times.step_s < second.times.step_s
    for one, reshard in ((found[0], False), (found[-1], True)):
        same = priced(replace(layout, reshard=reshard))
        assert one is not None
        assert same is not None
        assert one.memory == pytest.approx(same.memory)
        if reshard:
            assert one.times == pytest.approx(same.times)
        else:  # table and head are gathered again
            assert one.times.step_s > same.times.step_s


@pytest.mark.parametrize("layout", STAGES)
def test_the_least_blocks_that_fit_are_computed_again(layout: Layout) -> None:
    none, full = (price(replace(layout, recompute=kind), 8) for kind in ("none", "full"))  # type: ignore[arg-type]
    for part in (0.25, 0.5, 0.75):
        limit = full.memory.total + part * (none.memory.total - full.memory.total)
        of = prices(8)
        some = of.least_blocks(full, limit)
        found = of.price(some)
        assert found is not None
        assert found.memory.total <= limit
        assert none.times.step_s < found.times.step_s < full.times.step_s
        assert any(some.recompute_blocks)
        for stage, count in enumerate(some.recompute_blocks):
            if count:
                fewer = list(some.recompute_blocks)
                fewer[stage] -= 1
                less = of.price(replace(some, recompute_blocks=tuple(fewer)))
                assert less is not None
                assert less.memory.total > limit


def test_blocks_that_a_stage_lacks_are_refused() -> None:
    layout = Layout(pipeline=2, recompute="full", recompute_blocks=(2, 3), micro_batches=4)
    with refused(ValueError, "recompute_blocks", 3, 1, 2):
        prices().price(layout)


@pytest.mark.parametrize("count", [1, 4, 16])
def test_the_bubble_is_a_stage_less_than_the_pipeline(count: int) -> None:
    """Narayanan et al. 2021, section 2.2: (p - 1) / m of the time of m micro-batches, and v times
    less with v chunks."""
    layout = Layout(pipeline=4, micro_batches=count)
    found = price(layout, 16).times
    slowest = (found.step_s - found.bubble_s - found.state_s - found.optimizer_s) / count
    assert 0 < found.bubble_s <= 3 * slowest * (1 + 1e-9)
    if count >= 4:
        chunks = price(replace(layout, interleave=2, schedule="interleaved"), 16).times
        assert chunks.bubble_s < found.bubble_s
        assert price(replace(layout, schedule="zero-bubble"), 16).times.bubble_s < found.bubble_s


def test_kept_micro_batches() -> None:
    """1F1B keeps one for each later stage and its own, GPipe all; interleaved stages keep
    1 + (p - 1) / (p v) times as much (Narayanan et al. 2021, section 2.2)."""
    layout = Layout(pipeline=4, micro_batches=16)
    assert [micro_batches_kept(layout, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert micro_batches_kept(replace(layout, micro_batches=2), 0) == 2
    assert micro_batches_kept(replace(layout, schedule="gpipe"), 3) == 16
    interleaved = replace(layout, interleave=2, schedule="interleaved")
    assert micro_batches_kept(interleaved, 0) == 4 * (1 + 3 / (4 * 2))


def test_several_micro_batches_under_way_leave_gaps_in_memory() -> None:
    one, two = (price(Layout(pipeline=2, micro_batches=count), 16).stages[0] for count in (1, 2))
    kept = [
        memory_of_stage(
            Layout(pipeline=2, micro_batches=count), stage, 0, ADAMW, COMPILED
        ).activations
        for count, stage in ((1, one), (2, two))
    ]
    assert kept[1] == pytest.approx(1.1 * 2 * kept[0])


def test_a_stage_keeps_whole_copies_of_what_it_sends_and_nothing_that_was_gathered() -> None:
    """Three micro-batches are under way, and a tensor group's ranks have a half of each output."""
    layout = Layout(tensor=2, pipeline=3, micro_batches=4)
    stage = price(layout, 24).stages[0]
    software = replace(COMPILED, keeps_gathered=True, sent_copies=1.0)
    more, less = (
        memory_of_stage(layout, stage, 0, ADAMW, one).activations for one in (software, COMPILED)
    )
    assert more - less == pytest.approx(3 * 2 * stage.gives[0])


def test_a_loss_in_place_has_fewer_copies_of_the_logits() -> None:
    layout = Layout(micro_batch=4)
    stage = price(layout).stages[0]
    activations = [
        memory_of_stage(layout, stage, 0, ADAMW, replace(COMPILED, loss_outputs=count)).activations
        for count in (7.0, 2.0)
    ]
    assert activations[0] - activations[1] == pytest.approx(5 * stage.logits)


def test_gathers_inside_a_box_and_between() -> None:
    size = 1e9
    alone = BOXES.gather_s(size, RankGroup(1, 1))
    inside = BOXES.gather_s(size, RankGroup(8, 1))
    across = BOXES.gather_s(size, RankGroup(8, 8))  # one accelerator of each box, eight such groups
    assert alone == 0
    assert inside > 7 / 8 * size / BOXES.peer_bytes_per_s
    assert across > 8 * 7 / 8 * size / BOXES.box_bytes_per_s > inside
    assert BOXES.gather_s(size, RankGroup(64, 1)) < across


@pytest.mark.parametrize(("flat", "blocks"), [(False, 2), (True, 16)])
def test_a_gather_brings_the_blocks_of_other_boxes_or_all_but_one(flat: bool, blocks: int) -> None:
    slow = replace(BOXES, box_bytes_per_s=40e9, step_s=0.0, hop_s=0.0)
    boxes = replace(slow, flat_rings=flat)
    size, both = 1e9, RankGroup(16, 1)  # all accelerators of two boxes
    entering_s = (blocks - 1) / blocks * size / (boxes.box_bytes_per_s * PORT_EFFICIENCY)
    assert boxes.gather_s(size, both) == pytest.approx(entering_s + LAUNCH_S)


def test_layouts_are_all_factorisations() -> None:
    found = {(x.tensor, x.context, x.data, x.pipeline) for x in divisions(8, 8, 1)}
    expected = {
        (t, c, d, p)
        for t, c, d, p in itertools.product(divisors(8), repeat=4)
        if t * c * d * p == 8
    }
    assert found == expected
    for layout in divisions(8, 8, 1):
        assert (layout.accelerators, layout.batch_size) == (8, 8)
        for sharded in shardings(layout, 4):
            sharded.validate()
    ways = {(x.sharding, x.state_shards, x.reshard) for x in shardings(Layout(data=8), 4)}
    assert {name for name, _, _ in ways} == set(SHARDINGS)
    assert {shards for name, shards, _ in ways if name != "none"} == {4, 8}


@pytest.mark.parametrize("memory_bytes", [2.6e9, 2.502e9, 2.5005e9])
def test_the_fastest_is_that_of_all(memory_bytes: float) -> None:
    """Against every layout, without the bounds that leave some out; those without stages with
    every number of blocks."""
    of = prices()
    every = [
        found
        for division in divisions(8, 16, 1)
        for sharded in shardings(division, 8)
        for recompute in ("none", "selective", "full")
        for chosen in with_blocks(replace(sharded, recompute=recompute), 4)  # type: ignore[arg-type]
        if (found := of.price(chosen)) is not None and found.memory.total <= memory_bytes
    ]
    found = fastest_layouts(of, 8, 16, memory_bytes=memory_bytes)
    if not every:
        assert found == []
        return
    best = min(every, key=lambda one: one.times.step_s)
    assert found[0].times.step_s <= best.times.step_s * (1 + 1e-9)
    assert all(one.memory.total <= memory_bytes for one in found)


def with_blocks(layout: Layout, blocks: int) -> Iterator[Layout]:
    """`layout` with every number of blocks that are computed and gathered again."""
    counts: list[tuple[int, ...]] = [(), *((count,) for count in range(blocks))]
    for recompute, reshard in itertools.product(counts, counts):
        if layout.pipeline > 1 and (recompute or reshard):
            continue
        if (recompute and layout.recompute == "none") or (reshard and layout.zero_stage < 3):
            continue
        if reshard and not layout.reshard:
            continue
        yield replace(layout, recompute_blocks=recompute, reshard_blocks=reshard)


def test_a_host_that_issues_slowly_bounds_short_steps() -> None:
    layout = Layout(tensor=4)
    slow = LayoutPrices(decoder(), accelerator("h100:bf16"), BOXES, software=EAGER).price(layout)
    assert slow is not None
    assert slow.times.step_s > price(layout).times.step_s


@pytest.mark.parametrize(
    ("layout", "tokens"),
    [
        (Layout(tensor=0), ("tensor", 0)),
        (Layout(data=8, sharding="optimizer", state_shards=3), ("state_shards", 3, 8)),
        (Layout(data=8, state_shards=8), ("sharding", "none", 8)),
        (Layout(data=8, expert=3), ("expert", 3, 8)),
        (
            Layout(data=8, sharding="gradients", state_shards=8, offload="host"),
            ("offload", "parameters", "gradients"),
        ),
        (Layout(pipeline=4, interleave=2, micro_batches=6), ("micro_batches", 6, 4)),
    ],
)
def test_layouts_that_are_none(layout: Layout, tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        layout.validate()
