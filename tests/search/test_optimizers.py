"""Optimizers: bytes of state, and the time of a step."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.search.accelerators import BANDWIDTH, accelerator
from torch_topoopt.search.optimizers import OPTIMIZERS, optimizer, optimizer_seconds


@pytest.mark.parametrize(
    ("name", "state", "moved"),
    [
        ("adamw", 12, 28),
        ("adamw-fp32-gradients", 12, 30),
        ("adamw-bf16", 4, 14),
        ("sgd", 0, 6),
        ("sgd-momentum", 2, 10),
        ("lion", 2, 10),
    ],
)
def test_a_step_reads_gradients_and_reads_and_writes_state_and_weights(
    name: str, state: float, moved: float
) -> None:
    assert optimizer(name).state_bytes == state
    assert optimizer(name).moved_bytes == moved


def test_gradients_in_fp32_are_read_and_written_once_for_each_micro_batch() -> None:
    assert optimizer("adamw-fp32-gradients").accumulated_bytes == 10
    assert optimizer("adamw").accumulated_bytes == 6


def test_an_unknown_optimizer_is_answered_with_the_known_ones() -> None:
    with refused(ValueError, "optimizer", "madgrad", *OPTIMIZERS):
        optimizer("madgrad")


def test_adam_of_8_billion_parameters_takes_a_second_on_a_spark() -> None:
    device = accelerator("gb10:bf16")
    seconds = optimizer_seconds(device, 8e9 * optimizer("adamw").moved_bytes)
    assert seconds == pytest.approx(8e9 * 28 / (273e9 * BANDWIDTH))
    assert 0.8 < seconds < 1.1
