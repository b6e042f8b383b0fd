"""The bytes of one iteration, from counters that also see bytes sent once or now and then."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_topoopt.runtime.meters.iteration_meter import IterationMeter, Iterations


class Job:
    """Iterations of 2 s that send 100 and 30 bytes; every fifth is followed by a test of 7 s.

    `sent[k]` is what the messages of iteration k put on the two links, sooner or later; the rank is
    the source of what goes over the first one.
    """

    def __init__(self) -> None:
        self.now, self.sent = 100.0, [[5000, 9]]

    def begin(self) -> int:
        self.sent.append([0, 0])
        return len(self.sent) - 1

    def bytes_of(self, first: int, count: int) -> tuple[list[int], list[list[int]]]:
        by_link = [[size[i] for size in self.sent[first : first + count]] for i in (0, 1)]
        return by_link[0], by_link

    def iteration(self) -> None:
        self.now += 2.0
        self.sent[-1] = [self.sent[-1][0] + 100, self.sent[-1][1] + 30]
        if len(self.sent) % 5 == 1:
            self.now += 7.0
            self.sent[-1][0] += 12345


def meter_of(job: Job) -> IterationMeter:
    return IterationMeter(job.begin, job.bytes_of, lambda: job.now)


def test_what_happens_between_iterations_is_left_out() -> None:
    job = Job()
    meter, optimizer = meter_of(job), object.__new__(torch.optim.SGD)
    for _ in range(23):
        meter.stepped(optimizer)
        job.iteration()
    assert meter.result() == Iterations(20, 2.0, (100.0, 30.0))


def result_of(own: list[int], *links: list[int]) -> tuple[float, ...]:
    """The meter's bytes per link when these are the bytes of each iteration."""
    numbers = itertools.count(1)
    meter = IterationMeter(
        lambda: next(numbers), lambda first, count: (own[:count], [x[:count] for x in links])
    )
    optimizer = object.__new__(torch.optim.SGD)
    for _ in range(len(own) + 3):
        meter.stepped(optimizer)
    measured = meter.result()
    assert measured is not None
    assert measured.count == len(own)
    return measured.link_bytes


def test_a_small_test_is_seen_by_what_the_rank_sends_itself() -> None:
    """On its link it is less than what the turns of the routes make of one iteration."""
    assert result_of([75] * 4 + [85] + [75] * 4, [50, 25] * 2 + [60, 25] + [50, 25, 50]) == (37.5,)


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    st.integers(3, 40),
    st.integers(2, 3),
)
def test_messages_that_take_several_routes_in_turn_load_them_evenly(
    messages: list[int], iterations: int, routes: int
) -> None:
    """The next message takes the route that had the least so far: off by one message in all."""
    used = [0] * routes
    of_route: list[list[int]] = [[] for _ in used]
    for _ in range(iterations):
        before = list(used)
        for size in messages:
            used[used.index(min(used))] += size
        for taken, a, b in zip(of_route, before, used, strict=True):
            taken.append(b - a)
    largest, total = max(messages), sum(messages)
    for mean in result_of([total] * iterations, *of_route):
        assert abs(mean - total / routes) <= largest / iterations


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


def test_it_watches_every_optimizer_until_it_is_stopped() -> None:
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
