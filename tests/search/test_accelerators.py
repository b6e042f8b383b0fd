"""The roofline and its table."""

from __future__ import annotations

import math

import pytest
from small_op_graphs import operator

from torch_topoopt.search.accelerators import (
    ACCELERATORS,
    accelerator,
    operator_seconds,
    roofline_seconds,
)

A100 = accelerator("a100")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=f"'tpu' is not known; use one of {', '.join(ACCELERATORS)}"
    ):
        accelerator("tpu")


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_entry_is_a_device_that_could_exist(name: str) -> None:
    device = accelerator(name)
    for figure in (device.peak_flops, device.memory_bytes_per_s, device.peer_bytes_per_s):
        assert 0 < figure < math.inf
    assert device.memory_bytes > 0
    assert 0 < device.efficiency <= 1
    assert device.launch_overhead_s >= 0


def test_the_roofline_is_the_longer_of_computing_and_moving() -> None:
    computing = roofline_seconds(A100, 312e12, 1)
    moving = roofline_seconds(A100, 1, 2.039e12)
    assert computing == pytest.approx(1 / A100.efficiency + A100.launch_overhead_s)
    assert moving == pytest.approx(1 + A100.launch_overhead_s)
    assert roofline_seconds(A100, 0, 0) == 0


def test_sharing_a_batch_divides_flops_and_activations_but_not_parameters() -> None:
    dense = operator("dense", flops=10**13, backward_flops=2 * 10**13)
    whole, quarter = operator_seconds(A100, dense, 1), operator_seconds(A100, dense, 4)
    for one, four in zip(whole, quarter, strict=True):
        assert four - A100.launch_overhead_s == pytest.approx((one - A100.launch_overhead_s) / 4)
    read = operator("read", parameters=10**9, memory=10**9 + 8000)
    assert operator_seconds(A100, read, 8)[0] == pytest.approx(
        (1e9 + 1000) / A100.memory_bytes_per_s + A100.launch_overhead_s
    )


def test_an_embedding_is_charged_for_the_rows_it_reads_only() -> None:
    table = operator("table", flops=1, parameters=10**10, memory=10**8)
    forward, backward = operator_seconds(A100, table, 2)
    assert forward == pytest.approx(5e7 / A100.memory_bytes_per_s + A100.launch_overhead_s)
    assert backward == pytest.approx(1e8 / A100.memory_bytes_per_s + A100.launch_overhead_s)


def test_an_operator_without_gradients_has_no_backward_pass() -> None:
    assert operator_seconds(A100, operator("index", flops=10**6, backward_flops=0), 1)[1] == 0
