"""The cost model and its table."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import rooms
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused
from support.small_op_graphs import operator

from torch_topoopt.search.accelerators import (
    DEVICES,
    FITTED,
    accelerator,
    class_of,
    in_format,
    names,
    operator_seconds,
)

if TYPE_CHECKING:
    from torch_topoopt.search.accelerators.devices import Format

A100 = accelerator("a100")


def kind(name: str, flops: int = 0) -> str:
    return class_of(replace(operator("x", flops=flops), kind=name))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("tpu", ("tpu", ", ".join(names()))),
        ("a100:fp8", ("fp8", "a100:fp8", "fp32", "tf32", "bf16")),
        ("h100:fp4", ("fp4", "h100:fp4", "fp8")),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(
    name: str, tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        accelerator(name)


@pytest.mark.parametrize(
    ("name", "of_model", "expected"),
    [
        ("h100", "bf16", "h100:bf16"),
        ("h100:tf32", "bf16", "h100:tf32"),
        ("h100", "fp32", "h100"),
        ("cpu", "bf16", "cpu"),
    ],
)
def test_the_format_is_by_default_that_of_the_model(
    name: str, of_model: Format, expected: str
) -> None:
    assert in_format(name, of_model) == expected


@pytest.mark.parametrize(
    ("name", "number_format"),
    [(name, number_format) for name, row in DEVICES.items() for number_format in row.formats()],
)
def test_every_entry_is_a_device_that_could_exist(name: str, number_format: str) -> None:
    device = accelerator(f"{name}:{number_format}")
    for figure in (
        device.dense_flops,
        device.tensor_flops,
        device.memory_bytes_per_s,
        device.peer_bytes_per_s,
    ):
        assert 0 < figure < math.inf
    assert 0 <= device.reserved_bytes < device.memory_bytes
    assert (device.box.accelerators == 1) == (device.box.joined_by == "none")
    assert 0 < DEVICES[name].sustained < 1
    if number_format not in ("fp8", "fp4"):
        assert device.dense_flops <= device.tensor_flops
    assert device.tensor_flops >= accelerator(name).tensor_flops


def test_the_page_has_the_table_of_devices() -> None:
    page = (rooms.ROOT / "docs" / "planning" / "profiling.md").read_text(encoding="utf-8")
    for name, row in DEVICES.items():
        if name != "cpu-core":
            (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            shown = [cell for cell in cells[1:4] if cell != "-"]
            peaks = [peak / 1e12 for peak in row.peaks[2:] if peak]
            assert [float(cell) for cell in shown] == pytest.approx(peaks, rel=1e-3)
            assert float(cells[5]) == pytest.approx(row.memory_bytes_per_s / 1e12)
            assert (int(cells[6]), float(cells[7])) == (row.processors, row.sustained)
            assert cells[8].split()[0] in (str(row.box.accelerators), "alone")


def test_dense_layers_run_on_fp32_units_unless_a_format_is_named() -> None:
    assert accelerator("a100") == accelerator("a100:fp32")
    assert accelerator("a100").dense_flops == 19.5e12
    assert accelerator("a100").tensor_flops == accelerator("a100:tf32").dense_flops == 156e12
    assert accelerator("a100:bf16").dense_flops == 312e12
    assert accelerator("b200:fp4").dense_flops == 9000e12
    assert accelerator("b200:fp4").tensor_flops == 2250e12


def test_shares_of_peaks_are_shares() -> None:
    for cost in FITTED.values():
        for one in cost:
            assert 0 < one.efficiency <= 1
            assert 0 < one.bandwidth <= 1
            assert 0 <= one.overlap <= 1
            assert min(one.launch_s, one.operand_s) >= 0


def test_classes_follow_what_an_operator_is_called_and_whether_it_multiplies() -> None:
    assert kind("Linear", 1) == kind("bmm", 1) == kind("Experts", 1) == "dense"
    assert kind("Conv2d", 1) == kind("conv2d", 1) == "convolution"
    assert kind("MultiheadAttention", 1) == kind("scaled_dot_product_attention", 1) == "attention"
    assert kind("EmbeddingBag") == kind("Embedding") == "lookup"
    assert kind("cat") == "concatenation"
    assert kind("ReLU") == kind("LayerNorm") == "elementwise"


def test_a_dense_layer_costs_its_longer_part_and_some_of_the_shorter_one() -> None:
    layer = operator("dense", flops=10**13, memory=10**11)
    one = FITTED["dense"].forward
    compute_s = 1e13 / (19.5e12 * one.efficiency)
    move_s = 1e11 / (2.039e12 * one.bandwidth)
    expected = compute_s + (1 - one.overlap) * move_s + one.launch_s
    assert operator_seconds(A100, layer, 1)[0] == pytest.approx(expected)


def test_sharing_a_batch_divides_flops_and_activations_but_not_parameters() -> None:
    dense = operator("dense", flops=10**13, backward_flops=2 * 10**13)
    whole, quarter = operator_seconds(A100, dense, 1), operator_seconds(A100, dense, 4)
    for one, four, cost in zip(whole, quarter, FITTED["dense"], strict=True):
        assert four - cost.launch_s == pytest.approx((one - cost.launch_s) / 4)
    read = operator("read", parameters=10**9, memory=10**9 + 8000)
    launch_s = FITTED["elementwise"].forward.launch_s
    moved_s = (1e9 + 1000) / A100.memory_bytes_per_s
    assert operator_seconds(A100, read, 8)[0] == pytest.approx(moved_s + launch_s)


@pytest.mark.parametrize("memory", [10**8, 10**11])
def test_a_lookup_is_charged_for_the_rows_it_reads_only(memory: int) -> None:
    """Also where that is more than the table has: rows are read again for each sample."""
    table = replace(operator("t", parameters=10**10, memory=memory), kind="EmbeddingBag")
    forward, backward = operator_seconds(A100, table, 2)
    one, other = FITTED["lookup"]
    rate = A100.memory_bytes_per_s
    assert forward == pytest.approx(memory / 2 / (rate * one.bandwidth) + one.launch_s)
    assert backward == pytest.approx(memory / (rate * other.bandwidth) + other.launch_s)


def test_an_operator_without_gradients_has_no_backward_pass_and_a_view_costs_nothing() -> None:
    assert operator_seconds(A100, operator("index", flops=10**6, backward_flops=0), 1)[1] == 0
    assert operator_seconds(A100, operator("view"), 1) == (0.0, 0.0)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["Linear", "Conv2d", "MultiheadAttention", "EmbeddingBag", "cat", "ReLU"]),
    st.integers(0, 10**13),
    st.integers(1, 10**10),
    st.integers(1, 64),
)
def test_more_work_never_takes_less_time(name: str, flops: int, memory: int, shards: int) -> None:
    small = replace(operator("x", flops=flops, memory=memory), kind=name)
    large = replace(operator("x", flops=2 * flops, memory=2 * memory), kind=name)
    less, more = operator_seconds(A100, small, shards), operator_seconds(A100, large, shards)
    assert all(a <= b for a, b in zip(less, more, strict=True))
    assert operator_seconds(A100, small, shards + 1)[0] <= less[0]
