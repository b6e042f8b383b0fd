"""Measured profiles beside measured steps: what is compared, and how it is shown."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import profile_accuracy
import torch

from torch_topoopt.models import MODELS
from torch_topoopt.search.accelerators import accelerator

if TYPE_CHECKING:
    import pytest


def test_a_step_computes_every_gradient_and_times_both_passes() -> None:
    model = MODELS["dlrm"].build("tiny")
    batch = MODELS["dlrm"].example_batch(4, size="tiny")
    step = profile_accuracy.Step(model, batch, "cpu", itertools.count(0.0, 0.25).__next__)
    assert step.run() == (0.25, 0.25)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_predicted_is_the_sum_of_operators_and_an_error_is_relative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profile_accuracy, "accelerator", lambda _: accelerator("cpu-core"))
    clock = itertools.count(0.0, 1.0).__next__  # every pass takes one second, starting as well
    found = profile_accuracy.accuracy_of("ncf:tiny", 4, device="cpu", rounds=1, clock=clock)
    assert found.alone == found.operators > 5
    assert found.measured_s == (1.0, 1.0)
    assert found.predicted_s == (found.operators, 0.0)
    assert found.roofline_s is not None
    rows = profile_accuracy.rows_of(found)
    assert [row[1] for row in rows] == ["forward", "backward", "both"]
    assert rows[0][4] == f"{found.operators - 1:+.0%}"
    assert rows[2][2:4] == ("2000 ms", f"{found.operators * 1000:.4g} ms")
    assert len({len(profile_accuracy.line_of(row)) for row in rows}) == 1


def test_arguments_are_those_of_a_profile() -> None:
    tensor = torch.zeros(2)
    assert profile_accuracy.arguments_of(tensor) == ((tensor,), {})
    assert profile_accuracy.arguments_of((tensor, 3)) == ((tensor, 3), {})
    assert profile_accuracy.arguments_of({"x": tensor}) == ((), {"x": tensor})
