"""The step time and loss that a job notes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torch_topoopt.runtime.meters.step_log import StepLog

if TYPE_CHECKING:
    import pytest


class Clocked:
    """A log on a clock that the test turns; `events` are what it wrote."""

    def __init__(self) -> None:
        self.now, self.events = 10.0, list[dict[str, Any]]()
        self.log = StepLog(self.write, lambda: self.now)

    def write(self, event: str, **values: Any) -> None:
        self.events.append({"event": event, **values})

    def iterations(self, first: int, last: int, seconds: float) -> None:
        for iteration in range(first, last + 1):
            self.now += seconds
            self.log.ended(iteration)


def test_an_event_has_the_mean_of_the_second_before_it() -> None:
    clocked = Clocked()
    clocked.log.ended(3)  # nothing is known of its length
    clocked.iterations(4, 7, 0.25)
    clocked.iterations(8, 8, 2.0)
    assert clocked.events == [
        {"event": "step", "iteration": 7, "step_s": 0.25, "loss": None},
        {"event": "step", "iteration": 8, "step_s": 2.0, "loss": None},
    ]


def test_the_loss_is_the_scalar_that_backward_is_called_of() -> None:
    clocked, weights = Clocked(), torch.ones(4, requires_grad=True)
    before = torch.Tensor.backward
    end = clocked.log.watch_backward()
    try:
        clocked.log.ended(1)
        (weights.sum() * 2).backward()
        weights.square().backward(torch.ones(4))  # no loss
        clocked.iterations(2, 2, 1.0)
    finally:
        end()
    assert torch.equal(weights.grad, torch.full((4,), 4.0))
    assert clocked.events[0]["loss"] == 8.0
    assert torch.Tensor.backward is before
    weights.sum().backward()
    clocked.iterations(3, 3, 1.0)
    assert clocked.events[1]["loss"] is None


def test_a_loss_that_is_no_number_is_none() -> None:
    clocked = Clocked()
    clocked.log.ended(1)
    clocked.log.seen(torch.tensor(float("nan")))
    clocked.iterations(2, 2, 1.0)
    assert clocked.events[0]["loss"] is None


def test_training_goes_on_where_nothing_can_be_written_for_a_while() -> None:
    clocked = Clocked()
    full = [True, True, False]
    written: list[int] = []

    def write(*arguments: Any, **values: Any) -> None:
        if full.pop(0):
            raise OSError("disk full")
        written.append(values["iteration"])

    log = StepLog(write, lambda: clocked.now)
    for iteration in range(4):
        clocked.now += 1.0
        log.ended(iteration)
    assert written == [3]


def test_what_is_being_compiled_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked, weights = Clocked(), torch.ones(4, requires_grad=True)
    end = clocked.log.watch_backward()
    try:
        clocked.log.ended(1)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        (weights * 3).sum().backward()
        clocked.iterations(2, 2, 1.0)
    finally:
        end()
    assert torch.equal(weights.grad, torch.full((4,), 3.0))
    assert clocked.events[0]["loss"] is None
