"""Own work, waiting and operations of an iteration, on a clock that the test turns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.plan.rank_work import OperationTimes, find_slowest, together
from torch_topoopt.runtime.meters.work_meter import ThreadTimes, WorkMeter
from torch_topoopt.supervision.dumps import Dump, RecordedCall
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.rank_paces import read_pace

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


class Rank:
    """Iterations of 100 ms: it works for `own_ms` of them and sleeps for the rest. A call begins
    20 ms before it goes to sleep, and ends with the iteration."""

    def __init__(self, own_ms: int, path: Path | None = None) -> None:
        self.now_ns, self.awake_ns, self.own_ms = 10**18, 5 * MS, own_ms
        self.calls: list[RecordedCall] = []
        self.number = 0
        self.meter = WorkMeter(3, 1, path, lambda: self.now_ns, lambda: (7, self.awake_ns))
        self.end()

    def end(self) -> None:
        self.meter.ended(self.number)
        self.number += 1

    def iterate(self, count: int, length_ms: int = 100) -> None:
        for _ in range(count):
            called_ns = self.now_ns + (self.own_ms - 20) * MS
            self.now_ns += length_ms * MS
            self.awake_ns += self.own_ms * MS
            self.calls.append(call(len(self.calls), called_ns, self.now_ns))
            self.end()

    def dump(self, forgotten: int = 0) -> Dump:
        calls = tuple(self.calls[forgotten:])
        return Dump(3, 4, 1, "here", 1, self.now_ns, "", calls, {"0": (0, 1, 2, 3)}, {}, ())


def call(record: int, called_ns: int, completed_ns: int, size: int = 1000) -> RecordedCall:
    return RecordedCall(
        record, "0", "all_reduce", record + 1, "completed", False, (), (), (), -1, size, called_ns,
        started_ns=called_ns + MS, completed_ns=completed_ns,
    )  # fmt: skip


def test_an_iteration_is_own_work_and_waiting() -> None:
    rank = Rank(own_ms=70)
    rank.iterate(12)
    work = rank.meter.result(rank.dump())
    assert work is not None
    assert (work.rank, work.server, work.iterations) == (3, 1, 10)  # the first two are left out
    assert work.seconds == pytest.approx(0.1)
    assert work.under_way_s == pytest.approx(0.05)
    assert work.waiting_s == pytest.approx(0.03)
    assert work.own_s == pytest.approx(0.07)
    assert work.hidden_part == pytest.approx(0.4)
    assert work.operations == (OperationTimes("all_reduce", 4, 1000, 1.0, pytest.approx(0.049)),)


def test_a_test_between_iterations_does_not_count() -> None:
    rank = Rank(own_ms=70)
    for _ in range(4):
        rank.iterate(4)
        rank.iterate(1, length_ms=5000)
    work = rank.meter.result(rank.dump())
    assert work is not None
    assert work.seconds == pytest.approx(0.1)


def test_sleep_without_operations_is_no_waiting_for_them() -> None:
    """As of a rank that reads its samples from a slow disk: the others wait for it."""
    rank = Rank(own_ms=30)
    rank.iterate(8)
    rank.calls = [call(i, c.completed_ns - 5 * MS, c.completed_ns) for i, c in
                  enumerate(rank.calls) if c.completed_ns is not None]  # fmt: skip
    work = rank.meter.result(rank.dump())
    assert work is not None
    assert work.waiting_s == pytest.approx(0.005)
    assert work.own_s == pytest.approx(0.095)


def test_iterations_whose_operations_are_forgotten_are_left_out() -> None:
    rank = Rank(own_ms=70)
    rank.iterate(12)
    work = rank.meter.result(rank.dump(forgotten=9))
    assert work is not None
    assert work.iterations == 2
    assert work.operations[0].per_iteration == 1.0
    assert rank.meter.result(rank.dump(forgotten=11)) is None
    assert rank.meter.result(None) is None


def test_calls_that_overlap_are_under_way_once() -> None:
    rank = Rank(own_ms=50)
    rank.iterate(6)
    once = rank.meter.result(rank.dump())
    rank.calls += rank.calls
    twice = rank.meter.result(rank.dump())
    assert once is not None
    assert twice is not None
    assert twice.under_way_s == once.under_way_s == pytest.approx(0.07)
    assert twice.operations[0].per_iteration == 2.0


def test_the_pace_is_noted_once_a_second(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    rank = Rank(own_ms=70, path=job.pace(3))
    assert read_pace(job, 3) is None
    rank.iterate(11)
    pace = read_pace(job, 3)
    assert pace is not None
    assert (pace.rank, pace.iteration) == (3, 10)
    assert pace.step_s == pytest.approx(0.1)
    assert pace.own_s == pytest.approx(0.07)
    rank.meter.close()
    assert read_pace(job, 3) is None


def test_linux_tells_sleep_from_work() -> None:
    """However busy the processor is: what passes beside the sleep counts as work on both sides."""
    times = ThreadTimes()
    if times.awake_ns() is None:
        pytest.skip("this kernel does not count what threads do")
    began, before, ran = time.monotonic_ns(), times.awake_ns(), time.thread_time_ns()
    time.sleep(0.05)
    sum(range(100_000))
    ran = time.thread_time_ns() - ran
    after, passed = times.awake_ns(), time.monotonic_ns() - began
    times.close()
    assert before is not None
    assert after is not None
    assert after[0] == before[0]
    assert ran <= after[1] - before[1] <= passed - 50 * MS


def test_the_slowest_rank_is_a_tenth_slower_than_the_others() -> None:
    slowest = find_slowest({0: 0.08, 1: 0.12, 2: 0.07, 3: 0.09})
    assert slowest is not None
    assert str(slowest) == ("rank 1: own work 120 ms of an iteration, the others 80 ms (median)")
    assert find_slowest({0: 1.0, 1: 1.09}) is None
    assert find_slowest({0: 1.0}) is None
    assert find_slowest({}) is None


def test_an_operation_has_the_time_of_the_rank_that_waited_least() -> None:
    ranks = [Rank(own_ms=own) for own in (40, 70, 95)]
    works = []
    for rank in ranks:
        rank.iterate(6)
        work = rank.meter.result(rank.dump())
        assert work is not None
        works.append(work)
    (one,) = together(works)
    assert one.seconds == pytest.approx(0.024)
