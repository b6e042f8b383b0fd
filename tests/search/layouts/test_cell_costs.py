"""The cells of a model, and what they cost under a layout."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from search.layouts.decoders import ELEMENT_BYTES, SIZE, decoder, parameters

from torch_topoopt.models import qwen3_moe
from torch_topoopt.plan.layout import Layout
from torch_topoopt.profile.profiling import profile
from torch_topoopt.profile.repeated_layers import with_occurrences
from torch_topoopt.search.accelerators import BANDWIDTH, accelerator
from torch_topoopt.search.layouts.cell_costs import CellCost, CellCosts, PricedCell
from torch_topoopt.search.layouts.cells import cells_of

DEVICE = accelerator("h100:bf16")
_TENSOR_BYTES = SIZE.sequence * SIZE.hidden * ELEMENT_BYTES  # of one sequence's activations


def priced(layout: Layout, *, tied: bool = False) -> list[PricedCell]:
    found = CellCosts(decoder(tied=tied), DEVICE).priced(layout)
    assert found is not None
    return found


def block(layout: Layout) -> CellCost:
    return next(one.cost for one in priced(layout) if one.cell.block)


def test_cells_are_blocks_and_what_is_around_them() -> None:
    cells = cells_of(decoder())
    assert [cell.block for cell in cells] == [False, True, True, True, True, False]
    assert len({cell.kind for cell in cells if cell.block}) == 1
    bounds = [(cell.begin, cell.end) for cell in cells]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == len(decoder().operators)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(bounds))


@pytest.mark.parametrize("tied", [False, True])
def test_one_accelerator_has_all_parameters(tied: bool) -> None:
    cost = sum((one.cost for one in priced(Layout(), tied=tied)), CellCost())
    assert cost.parameter_bytes == parameters(tied=tied) * ELEMENT_BYTES
    assert cost.copied_bytes == (SIZE.vocabulary * SIZE.hidden * ELEMENT_BYTES if tied else 0)


@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_a_tensor_group_shares_all_parameters_but_norms(tensor: int, tied: bool) -> None:
    cost = sum((one.cost for one in priced(Layout(tensor=tensor), tied=tied)), CellCost())
    norms = (2 * SIZE.blocks + 1) * SIZE.hidden
    shared = parameters(tied=tied) - norms
    assert cost.parameter_bytes == (shared / tensor + norms) * ELEMENT_BYTES


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_a_block_gathers_and_scatters_twice_a_pass(micro_batch: int) -> None:
    """Korthikanti et al. 2022, section 4.2.2: attention and MLP, each begins with a gather and ends
    with a scatter of all activations."""
    exchange = block(Layout(tensor=2, micro_batch=micro_batch)).tensor
    assert exchange.count == 4
    assert exchange.size_bytes == 4 * micro_batch * _TENSOR_BYTES
    assert block(Layout(micro_batch=micro_batch)).tensor.count == 0


def test_a_context_group_passes_keys_and_values() -> None:
    pairs = SIZE.kv_heads / SIZE.heads
    exchange = block(Layout(context=2)).context
    assert (exchange.count, exchange.size_bytes) == (1, 2 * pairs * _TENSOR_BYTES)
    both = block(Layout(tensor=2, context=2)).context
    assert both.size_bytes == exchange.size_bytes / 2


@pytest.mark.parametrize("layout", [Layout(tensor=2), Layout(context=2), Layout(2, 2)])
def test_what_a_block_keeps_is_shared(layout: Layout) -> None:
    whole, part = block(Layout()), block(layout)
    parts = layout.tensor * layout.context
    # every context rank keeps all keys and values
    kept = 2 * SIZE.kv_heads / SIZE.heads * _TENSOR_BYTES * (1 - 1 / layout.context)
    expected = whole.saved_bytes / parts + kept / layout.tensor
    assert part.saved_bytes == pytest.approx(expected, rel=0.02)


def test_micro_batches_cost_in_proportion() -> None:
    one, four = block(Layout()), block(Layout(micro_batch=4))
    assert four.saved_bytes == 4 * one.saved_bytes
    assert four.parameter_bytes == one.parameter_bytes
    assert one.forward_s <= four.forward_s <= 4 * one.forward_s


def test_groups_of_experts_hold_their_part_and_exchange_tokens() -> None:
    size = qwen3_moe.SIZES["tiny"]
    graph = profile(
        lambda: qwen3_moe.build("tiny"), qwen3_moe.example_batch(1, size="tiny"), name="qwen"
    )
    costs = CellCosts(graph, DEVICE)
    alone, shared = costs.priced(Layout(data=2)), costs.priced(Layout(data=2, expert=2))
    assert alone is not None
    assert shared is not None
    held = 3 * size.experts * size.hidden * size.ffn * size.dtype.itemsize
    for one, two in zip(alone, shared, strict=True):
        if one.cell.block:
            assert two.cost.expert_bytes == held / 2
            assert two.cost.parameter_bytes == one.cost.parameter_bytes - held / 2
            assert two.cost.expert.count > 0 == one.cost.expert.count
            sorted_s = 2 * two.cost.expert.size_bytes / (DEVICE.memory_bytes_per_s * BANDWIDTH)
            for name in ("streamed_forward_s", "streamed_backward_s"):
                more_s = getattr(two.cost, name) - getattr(one.cost, name)
                assert more_s == pytest.approx(sorted_s)
    assert costs.priced(Layout(data=3, expert=3)) is None


def test_a_model_may_be_profiled_with_two_blocks() -> None:
    made, whole = with_occurrences(decoder(2), 4), decoder(4)
    assert made.layers == whole.layers
    for one, other in zip(made.operators, whole.operators, strict=True):
        assert one == replace(other, name=one.name)
    assert math.isclose(made.parameter_bytes, parameters() * ELEMENT_BYTES)
