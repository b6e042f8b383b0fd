"""What one iteration takes, out of counters that also see what is sent once or now and then."""

from __future__ import annotations

import pytest
import torch

from torch_topoopt.iteration_meter import IterationMeter, Iterations


class Job:
    """Iterations of 2 s that send 100 and 30 bytes; every fifth is followed by a test of 7 s."""

    def __init__(self) -> None:
        self.now, self.sent, self.steps = 100.0, [5000, 9], 0

    def iteration(self) -> None:
        self.steps += 1
        self.now += 2.0
        self.sent = [self.sent[0] + 100, self.sent[1] + 30]
        if self.steps % 5 == 0:
            self.now += 7.0
            self.sent[0] += 12345


def meter_of(job: Job) -> IterationMeter:
    return IterationMeter(lambda: list(job.sent), lambda: job.now)


def test_what_happens_between_iterations_is_left_out() -> None:
    job = Job()
    meter, optimizer = meter_of(job), object.__new__(torch.optim.SGD)
    for _ in range(23):
        meter.stepped(optimizer)
        job.iteration()
    assert meter.result() == Iterations(20, 2.0, (100.0, 30.0))


def test_of_several_optimizers_the_first_one_counts() -> None:
    job = Job()
    meter = meter_of(job)
    first, second = (object.__new__(torch.optim.SGD) for _ in range(2))
    for _ in range(4):
        meter.stepped(first)
        meter.stepped(second)
        job.iteration()
    assert meter.result() == Iterations(1, 2.0, (100.0, 30.0))


def test_too_few_iterations_are_none() -> None:
    meter, optimizer = meter_of(Job()), object.__new__(torch.optim.SGD)
    for _ in range(3):
        meter.stepped(optimizer)
    assert meter.result() is None


def test_it_watches_every_optimizer_until_it_is_told_not_to() -> None:
    job = Job()
    meter = meter_of(job)
    stop = meter.install()
    try:
        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(5):
            parameter.grad = torch.ones(2)
            optimizer.step()
            job.iteration()
    finally:
        stop()
    optimizer.step()
    measured = meter.result()
    assert measured is not None
    assert measured.count == 2
    assert measured.seconds == pytest.approx(2.0)
