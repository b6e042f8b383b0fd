"""Stages of unequal times: they fit where equal ones do not, and are no longer than needed."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from search.layouts.decoders import decoder

from torch_topoopt.plan.layout import Layout
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.layouts.links import Boxes
from torch_topoopt.search.layouts.prices import LayoutPrices
from torch_topoopt.search.layouts.software import COMPILED, EAGER
from torch_topoopt.search.layouts.space import fastest_layouts
from torch_topoopt.search.layouts.uneven import CellMemory, cells_within


def longest_s(seconds: list[float], counts: tuple[int, ...]) -> float:
    bounds = (0, *itertools.accumulate(counts))
    return max(sum(seconds[a:b]) for a, b in itertools.pairwise(bounds))


def fits(
    memory: list[CellMemory], counts: tuple[int, ...], kept: list[int], room: list[float]
) -> bool:
    bounds = (0, *itertools.accumulate(counts))
    return all(
        sum(one.state + kept[i] * one.kept for one in memory[a:b]) <= room[i] + 1e-9
        for i, (a, b) in enumerate(itertools.pairwise(bounds))
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_stage_is_the_shortest_of_all_that_fit(seed: int) -> None:
    chance = random.Random(seed)
    seconds = [chance.uniform(1, 3) for _ in range(8)]
    memory = [CellMemory(chance.uniform(0, 2), chance.uniform(0, 2), 0.0) for _ in seconds]
    kept, room = [3, 2, 1], [chance.uniform(3, 14) for _ in range(3)]
    every = [
        counts
        for counts in itertools.product(range(1, 7), repeat=3)
        if sum(counts) == 8 and fits(memory, counts, kept, room)
    ]
    found = cells_within(seconds, memory, kept, room)
    if not every:
        assert found is None
        return
    assert found is not None
    assert fits(memory, found, kept, room)
    least = min(longest_s(seconds, counts) for counts in every)
    assert longest_s(seconds, found) == pytest.approx(least, rel=1e-4)


def prices() -> LayoutPrices:
    return LayoutPrices(
        decoder(16), accelerator("h100:bf16"), Boxes(1, 450e9, 50e9), software=EAGER
    )


def test_uneven_stages_fit_where_equal_ones_do_not() -> None:
    of, layout = prices(), Layout(pipeline=4, micro_batches=16)
    even = of.price(layout)
    assert even is not None
    memory_bytes = even.memory.total - 1
    uneven = of.cut_within(layout, memory_bytes)
    assert uneven is not None
    assert uneven.cells != of.cut(layout).cells
    price = of.price(uneven)
    assert price is not None
    assert price.memory.total <= memory_bytes
    assert price.times.step_s >= even.times.step_s
    assert of.cut_within(layout, 0.0) is None


def test_a_plan_names_the_cells_that_are_priced() -> None:
    of, layout = prices(), Layout(pipeline=4, micro_batches=16)
    cut = of.cut(layout)
    assert sum(cut.cells) == 18  # embedding, blocks, head
    assert of.price(cut) == of.price(layout)._replace(layout=cut)  # type: ignore[union-attr]
    assert of.price(replace(layout, cells=(1, 1, 1, 1))) is None
    assert of.cut(Layout()) == Layout()


def test_only_software_that_splits_backward_passes_gets_zero_bubbles() -> None:
    device, boxes = accelerator("h100:bf16"), Boxes(1, 450e9, 1e6)  # pipelines send least
    for software in (EAGER, COMPILED):
        of = LayoutPrices(decoder(8), device, boxes, software=software)
        found = fastest_layouts(of, 4, 64, memory_bytes=1e12)
        schedules = {one.layout.schedule for one in found if one.layout.pipeline > 1}
        assert ("zero-bubble" in schedules) == (software is EAGER)
        for one in found:
            if one.layout.schedule == "zero-bubble":
                assert not one.layout.why_no_zero_bubble
