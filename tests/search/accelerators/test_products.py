"""Matrix products on tensor cores: their shapes, and the rate that a shape allows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_op_graphs import operator
from torch import nn

from torch_topoopt.op_graph import Operand
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.accelerators import BANDWIDTH, DEVICES, accelerator, operator_seconds
from torch_topoopt.search.accelerators.products import ProductShape, shape_of, utilisation

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator

H100 = DEVICES["h100"]


def linear(rows: int, columns: int, inner: int, *, element: int = 2) -> Operator:
    """A linear layer with trainable parameters and gradients for its operand."""
    weights, read, output = (
        element * size for size in (columns * inner, rows * inner, rows * columns)
    )
    made = operator(
        "linear",
        (0, read, read),
        flops=2 * rows * columns * inner,
        parameters=weights,
        output=output,
        memory=weights + read + output,
    )
    return replace(made, kind="Linear")


@pytest.mark.parametrize("element", [2, 4])
def test_the_shape_of_a_linear_layer_follows_from_flops_and_bytes(element: int) -> None:
    layer = linear(8192, 14336, 4096, element=element)
    assert shape_of(layer, 1) == pytest.approx((1, 8192, 14336, 4096))
    assert shape_of(layer, 16) == pytest.approx((1, 512, 14336, 4096))


def test_the_shape_of_a_profiled_layer_is_its_own() -> None:
    layer = nn.Linear(256, 1024, dtype=torch.bfloat16)
    (traced,) = profile(layer, torch.zeros(64, 32, 256, dtype=torch.bfloat16), name="x").operators
    assert shape_of(traced, 1) == pytest.approx((1, 64 * 32, 1024, 256), rel=0.01)  # the bias


def test_experts_are_as_many_products_and_share_the_rows() -> None:
    one = linear(4096, 768, 2048)
    weights = 64 * one.parameter_bytes
    grouped = replace(
        one,
        kind="grouped_mm",
        parameter_bytes=weights,
        memory_bytes=one.memory_bytes - one.parameter_bytes + weights,
    )
    assert shape_of(grouped, 1) == pytest.approx((64, 64, 768, 2048))


def test_a_layer_with_the_parameters_of_another_is_as_fast() -> None:
    """Its parameters are counted where they are used first, its traffic is the same."""
    head = linear(8192, 50304, 1024)
    tied = replace(head, parameter_bytes=0, parameter_gradient_bytes=0)
    device = accelerator("h100:bf16")
    for own, shared in zip(
        operator_seconds(device, head, 1), operator_seconds(device, tied, 1), strict=True
    ):
        assert shared == pytest.approx(own, rel=0.1)


@pytest.mark.parametrize("device", ["a100", "h100", "b200", "gb10"])
def test_large_products_reach_the_sustained_rate_and_small_ones_do_not(device: str) -> None:
    processors = DEVICES[device].processors
    large = utilisation(ProductShape(1, 16384, 16384, 16384), processors)
    assert 0.9 < large <= 1
    assert utilisation(ProductShape(1, 16384, 16384, 64), processors) < 0.5 * large  # short sums
    assert utilisation(ProductShape(1, 16, 16384, 16384), processors) < 0.3 * large  # padded tiles


def test_one_tile_more_than_processors_takes_a_second_wave() -> None:
    full = utilisation(ProductShape(1, 256 * 132, 128, 4096), 132)
    more = utilisation(ProductShape(1, 256 * 133, 128, 4096), 132)
    assert more < 0.9 * full


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 128), st.integers(1, 300)
)
def test_utilisation_is_a_fraction_and_falls_with_the_speed(
    rows: float, columns: float, inner: float, matrices: float, processors: int
) -> None:
    shape = ProductShape(matrices, rows, columns, inner)
    assert 0 < utilisation(shape, processors, 2.0) < utilisation(shape, processors) <= 1 + 1e-9


def test_a_product_of_few_rows_costs_the_traffic_of_its_parameters() -> None:
    device = accelerator("h100:bf16")
    layer = linear(8, 8192, 8192)
    forward, _ = operator_seconds(device, layer, 1)
    assert forward == pytest.approx(
        layer.memory_bytes / (device.memory_bytes_per_s * BANDWIDTH), rel=0.2
    )


def test_an_odd_number_of_columns_costs_half_of_the_rate() -> None:
    """50257 tokens, and the multiple of 128 above."""
    device = accelerator("h100:bf16")
    odd, even = (linear(8192, columns, 768) for columns in (50257, 50304))
    for slow, fast in zip(
        operator_seconds(device, odd, 1), operator_seconds(device, even, 1), strict=True
    ):
        assert slow == pytest.approx(2 * fast, rel=0.1)


def test_an_mlp_of_one_operator_also_moves_the_tensors_between_its_products() -> None:
    device = accelerator("h100:bf16")
    alone = replace(linear(8192, 4096, 4096), kind="MLP")
    saved = alone.operands[0].size_bytes + 3 * 10**9
    kept = replace(alone, saved_bytes=saved)
    moved_s = 3e9 / (device.memory_bytes_per_s * BANDWIDTH)
    pairs = zip(operator_seconds(device, kept, 1), operator_seconds(device, alone, 1), strict=True)
    assert [one - other for one, other in pairs] == pytest.approx([moved_s, 2 * moved_s])
    layer = replace(kept, kind="Linear")
    assert operator_seconds(device, layer, 1) == operator_seconds(
        device, replace(layer, saved_bytes=0), 1
    )


def test_large_layers_take_the_sustained_part_of_the_peak() -> None:
    layer = linear(16384, 16384, 16384)
    forward, backward = operator_seconds(accelerator("h100:bf16"), layer, 1)
    expected = layer.forward_flops / (989e12 * H100.sustained)
    assert forward == pytest.approx(expected, rel=0.05)
    assert backward == pytest.approx(2 * expected, rel=0.05)


def test_narrow_formats_multiply_layers_faster_but_not_the_output_layer_or_activations() -> None:
    layer, head = linear(16384, 8192, 8192), linear(16384, 131072, 8192)
    scores = replace(
        operator("bmm", flops=2 * 16 * 4096**2 * 128, output=2 * 16 * 4096**2), kind="bmm"
    )
    bf16, fp8, fp4 = (accelerator(f"b200:{name}") for name in ("bf16", "fp8", "fp4"))
    slow, fast, faster = (operator_seconds(device, layer, 1)[0] for device in (bf16, fp8, fp4))
    assert 0.5 < fast / slow < 0.8
    assert faster < fast
    for other in (head, scores):
        assert operator_seconds(fp4, other, 1) == operator_seconds(bf16, other, 1)


def test_frozen_parameters_and_recomputation_change_the_backward_pass_alone() -> None:
    layer = linear(8192, 4096, 4096)
    device = accelerator("h100:bf16")
    forward, backward = operator_seconds(device, layer, 1)
    frozen = replace(layer, backward_flops=layer.forward_flops, parameter_gradient_bytes=0)
    assert operator_seconds(device, frozen, 1) == pytest.approx((forward, forward), rel=0.1)
    again = replace(layer, backward_flops=3 * layer.forward_flops)
    assert operator_seconds(device, again, 1)[1] == pytest.approx(backward + forward, rel=0.05)
    first = replace(layer, backward_flops=layer.forward_flops, operands=(Operand(0, 1, 0),))
    assert operator_seconds(device, first, 1)[1] == pytest.approx(forward, rel=0.1)
