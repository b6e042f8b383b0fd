"""Lower bounds of layouts never leave out a faster one."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from search.layouts.decoders import decoder

from torch_topoopt.models import qwen3_moe
from torch_topoopt.models.llama import Llama
from torch_topoopt.plan.layout import RECOMPUTES, Layout
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.layouts.bounds import least_passes_s
from torch_topoopt.search.layouts.links import Boxes
from torch_topoopt.search.layouts.memory import RUNTIME_BYTES
from torch_topoopt.search.layouts.prices import LayoutPrices
from torch_topoopt.search.layouts.software import COMPILED, EAGER, MEGATRON
from torch_topoopt.search.layouts.space import divisions, fastest_layouts, shardings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.layouts.software import Software

_BOX = 4
_FAST, _SLOW = Boxes(_BOX, 450e9, 400e9), Boxes(_BOX, 1e8, 1e6)


@cache
def mixture() -> OpGraph:
    size = qwen3_moe.SIZES["tiny"]
    tokens = torch.zeros(1, size.sequence, dtype=torch.long)
    return profile(lambda: Llama(size), tokens, name="mixture")


def prices(graph: OpGraph, boxes: Boxes, software: Software) -> LayoutPrices:
    return LayoutPrices(graph, accelerator("h100:bf16"), boxes, software=software)


def variants(division: Layout) -> Iterator[Layout]:
    """Every sharding, also on hosts, and recomputation, and a zero-bubble schedule."""
    sharded_ways = (*shardings(division, _BOX), *shardings(division, _BOX, "host"))
    for sharded, recompute in itertools.product(sharded_ways, RECOMPUTES):
        layout = replace(sharded, recompute=recompute)
        yield layout
        other = replace(layout, schedule="zero-bubble")
        if layout.pipeline > 1 and layout.interleave == 1 and not other.why_no_zero_bubble:
            yield other


@pytest.mark.parametrize("boxes", [_FAST, _SLOW])
@pytest.mark.parametrize("software", [EAGER, COMPILED, MEGATRON])
@pytest.mark.parametrize(("model", "experts"), [("decoder", 1), ("mixture", 4)])
def test_no_layout_is_faster_than_its_bounds(
    model: str, experts: int, software: Software, boxes: Boxes
) -> None:
    of = prices(decoder(8) if model == "decoder" else mixture(), boxes, software)
    priced = 0
    for division in divisions(8, 16, experts):
        bounds_s = of.bound_s(division), of.cut_bound_s(division)
        for layout in variants(division):
            price = of.price(layout)
            if price is None:
                assert bounds_s[1] == math.inf
                continue
            if layout.schedule == "zero-bubble" and not software.splits_backward:
                continue
            priced += 1
            least_s = price.times.step_s * (1 + 1e-9)
            assert bounds_s[0] <= bounds_s[1] * (1 + 1e-9)
            assert bounds_s[1] <= least_s
            if layout.offload == "host":
                assert of.host_bound_s(division) <= least_s
            assert of.state_fits(layout, price.memory.total)
            assert of.state_fits(layout, RUNTIME_BYTES) != any(price.memory[:3])  # its state
    assert priced > 100


@pytest.mark.parametrize("boxes", [_FAST, _SLOW])
def test_no_cut_is_faster_than_the_bound_of_all_cuts(boxes: Boxes) -> None:
    rng = random.Random(1)
    of = prices(decoder(16), boxes, EAGER)
    cells = len(of.costs.cells)
    for _ in range(300):
        stages = rng.choice([2, 3, 4, 8])
        count = rng.choice([1, 2, stages, stages + 1, 2 * stages, 8 * stages])
        cuts = sorted(rng.sample(range(1, cells), stages - 1))
        counts = tuple(end - begin for begin, end in itertools.pairwise((0, *cuts, cells)))
        layout = Layout(pipeline=stages, micro_batches=count)
        for schedule in ("1f1b", "zero-bubble"):
            price = of.price(replace(layout, cells=counts, schedule=schedule))  # type: ignore[arg-type]
            assert price is not None
            assert of.bound_s(layout) <= price.times.step_s * (1 + 1e-9)


def test_the_bound_of_equal_stages_has_their_bubble() -> None:
    """Of more micro-batches than stages: all passes of one, and one stage's of the others."""
    layout = Layout(pipeline=4, micro_batches=8)
    assert least_passes_s(layout, 4.0, splits_backward=False) == pytest.approx(4 + 7)
    assert least_passes_s(layout, 4.0, splits_backward=True) == pytest.approx(8 + 3 / 3)
    chunks = replace(layout, interleave=2, schedule="interleaved")
    assert least_passes_s(chunks, 4.0, splits_backward=False) == pytest.approx(8 + 3 / 2)
    assert least_passes_s(Layout(micro_batches=8), 4.0, splits_backward=True) == 32


@pytest.mark.parametrize("software", [EAGER, COMPILED])
@pytest.mark.parametrize("memory_bytes", [2.6e9, 2.502e9, 2.5005e9])
def test_the_fastest_few_are_the_first_of_all(memory_bytes: float, software: Software) -> None:
    """Of all, no division is left out for being slower than some others."""
    of = prices(decoder(8), _FAST, software)
    few, every = (
        fastest_layouts(of, 8, 16, memory_bytes=memory_bytes, count=count) for count in (3, 1000)
    )
    assert len(every) > 3 or memory_bytes < 2.502e9
    assert few == every[:3]


@pytest.mark.parametrize("boxes", [_FAST, _SLOW])
@pytest.mark.parametrize("memory_bytes", [2.7e9, 2.53e9, 2.502e9])
def test_state_on_hosts_is_chosen_where_it_is_faster(memory_bytes: float, boxes: Boxes) -> None:
    """Against every layout, if it gains a tenth; what is found without hosts stays."""
    of = prices(decoder(8), boxes, COMPILED)
    without, on_host, both = (
        fastest_layouts(of, 8, 16, memory_bytes=memory_bytes, offload=offload)  # type: ignore[arg-type]
        for offload in ("none", "host", "auto")
    )
    every = [
        price
        for division in divisions(8, 16, 1)
        for layout in variants(division)
        if layout.schedule == "1f1b"
        if (price := of.price(layout)) is not None and price.memory.total <= memory_bytes
    ]
    for found, kinds in ((without, ("none",)), (on_host, ("host",)), (both, ("none", "host"))):
        of_kinds = [one.times.step_s for one in every if one.layout.offload in kinds]
        assert {one.layout.offload for one in found} <= set(kinds)
        assert not of_kinds or found[0].times.step_s <= min(of_kinds) / 0.9 * (1 + 1e-9)
    assert all(one in both for one in without)
    worth_s = 0.9 * without[0].times.step_s if without else math.inf
    assert on_host
    is_worth = on_host[0].times.step_s < worth_s
    assert both[0] == (on_host if is_worth else without)[0]
    assert all(p.times.step_s < worth_s for p in both if p.layout.offload == "host")
