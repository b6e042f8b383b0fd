"""How long the training thread of this rank works in an iteration, and how long it waits.

Linux counts the time that a thread ran and the time that it waited for a processor
(/proc/thread-self/schedstat); the rest of the time it slept. In training on CPUs, a thread sleeps
for operations in progress: DistributedDataParallel at the end of its backward pass, a collective
without `async_op`, or `Work.wait()`. So of two ranks the one that sleeps less is the slower one,
without comparing clocks. With tensors on an accelerator the thread also sleeps while the
accelerator computes, so no result is reported.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.plan.rank_work import MOST_KINDS, OperationTimes, RankWork
from torch_topoopt.runtime.meters.iteration_meter import MOST_ITERATIONS, WARM_UP_ITERATIONS
from torch_topoopt.supervision.rank_paces import RankPace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch_topoopt.supervision.dumps import Dump, RecordedCall

_INTERVAL_S = 1.0

log = logging.getLogger("torch_topoopt")


class ThreadTimes:
    """How long the calling thread has run or waited for a processor; None: unknown."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._handle: int | None = None

    def awake_ns(self) -> tuple[int, int] | None:
        """The thread, and nanoseconds since it started."""
        import torch  # local, for importing it loads the backend, and with it this module

        if torch.cuda.is_initialized() or torch.xpu.is_initialized():
            return None
        thread = threading.get_native_id()
        if thread != self._thread:
            self.close()
            self._thread = thread
            try:
                self._handle = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._handle = None
        if self._handle is None:
            return None
        try:
            _, waited, _ = os.pread(self._handle, 128, 0).split()
        except (OSError, ValueError):
            return None
        return thread, time.thread_time_ns() + int(waited)  # the file's run time lags by a tick

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self._thread = self._handle = None


class _End(NamedTuple):
    """An iteration ended at `time_ns` since the epoch."""

    time_ns: int
    awake: tuple[int, int] | None

    def slept_ns(self, before: _End) -> int | None:
        """Between two ends of one thread."""
        if self.awake is None or before.awake is None or self.awake[0] != before.awake[0]:
            return None
        passed = self.time_ns - before.time_ns
        return min(max(passed - (self.awake[1] - before.awake[1]), 0), passed)


class WorkMeter:
    """Notes the end of every iteration, and about once a second writes this rank's pace to `path`
    (None: never) for `topoopt top` and `topoopt status`."""

    def __init__(
        self,
        rank: int,
        server: int,
        path: Path | None,
        clock: Callable[[], int] = time.time_ns,
        awake_ns: Callable[[], tuple[int, int] | None] | None = None,
    ) -> None:
        self._rank, self._server, self._path = rank, server, path
        self._clock = clock
        self._times = ThreadTimes()
        self._awake_ns = awake_ns or self._times.awake_ns
        self._ends: deque[_End] = deque(maxlen=MOST_ITERATIONS)
        self._written: tuple[_End, int] | None = None  # and the number of iterations by then

    def ended(self, number: int) -> None:
        """`number` iterations are over."""
        end = _End(self._clock(), self._awake_ns())
        self._ends.append(end)
        if self._path is not None:
            self._write_pace(end, number)

    def _write_pace(self, end: _End, number: int) -> None:
        if self._written is None:
            self._written = (end, number)
            return
        before, first = self._written
        if end.time_ns - before.time_ns < _INTERVAL_S * 1e9 or number <= first:
            return
        self._written = (end, number)
        count, passed = number - first, end.time_ns - before.time_ns
        slept = end.slept_ns(before)
        own_s = None if slept is None else (passed - slept) / count / 1e9
        pace = RankPace(RankPace.VERSION, self._rank, number, passed / count / 1e9, own_s)
        assert self._path is not None
        try:
            self._path.parent.mkdir(exist_ok=True)
            pace.save(self._path)
        except OSError as error:  # the launcher warns, and training continues
            log.info("the pace of this rank cannot be noted: %s", error)

    def close(self) -> None:
        """The job is over."""
        self._times.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def result(self, dump: Dump | None) -> RankWork | None:
        """The work in the iterations with all operations in `dump`; None without any.

        Times are means over the middle half of the iterations, as those of IterationMeter are.
        """
        calls = dump.calls if dump is not None else ()
        ends = list(self._ends)[WARM_UP_ITERATIONS:]
        if calls and calls[0].record:  # the ring has dropped earlier calls
            ends = [end for end in ends if end.time_ns >= calls[0].called_ns]
        if len(ends) < 2 or not calls:
            return None
        spans = list(itertools.pairwise(ends))
        passed = [after.time_ns - before.time_ns for before, after in spans]
        under_way = _under_way([end.time_ns for end in ends], calls)
        slept = [after.slept_ns(before) for before, after in spans]
        middle = _middle_half(passed)
        waiting_s = None
        if all(slept[i] is not None for i in middle):
            waiting = [min(slept[i] or 0, under_way[i]) for i in middle]
            waiting_s = sum(waiting) / len(middle) / 1e9
        assert dump is not None
        return RankWork(
            self._rank,
            self._server,
            len(spans),
            sum(passed[i] for i in middle) / len(middle) / 1e9,
            sum(under_way[i] for i in middle) / len(middle) / 1e9,
            waiting_s,
            _operations(calls, dump.members, ends[0].time_ns, ends[-1].time_ns, len(spans)),
        )


def _middle_half(values: Sequence[int]) -> list[int]:
    """Their indices, without the lowest and the highest quarter."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    quarter = len(order) // 4
    return order[quarter : len(order) - quarter]


def _under_way(ends_ns: Sequence[int], calls: Sequence[RecordedCall]) -> list[int]:
    """Nanoseconds between each two ends in which at least one call was under way."""
    found = [0] * (len(ends_ns) - 1)
    intervals = sorted(
        (call.called_ns, ends_ns[-1] if call.completed_ns is None else call.completed_ns)
        for call in calls
    )
    place, until = 0, ends_ns[0]
    for begin, end in intervals:
        begin, end = max(begin, until), min(end, ends_ns[-1])
        until = max(until, end)
        while begin < end:
            while ends_ns[place + 1] <= begin:
                place += 1
            part = min(end, ends_ns[place + 1])
            found[place] += part - begin
            begin = part
    return found


def _operations(
    calls: Sequence[RecordedCall],
    members: dict[str, tuple[int, ...]],
    first_ns: int,
    last_ns: int,
    iterations: int,
) -> tuple[OperationTimes, ...]:
    """Collectives called between two times, grouped by kind."""
    seconds: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for call in calls:
        if call.message is not None or not call.bytes or call.completed_ns is None or call.failed:
            continue
        ranks = len(members.get(call.group, ()))
        if ranks > 1 and first_ns <= call.called_ns < last_ns:
            begun = call.called_ns if call.started_ns is None else call.started_ns
            key = (call.name, ranks, call.bytes)
            seconds[key].append(max(0, call.completed_ns - begun) / 1e9)
    most = sorted(seconds.items(), key=lambda item: -sum(item[1]))[:MOST_KINDS]
    return tuple(
        OperationTimes(*key, len(times) / iterations, sum(times) / len(times))
        for key, times in most
    )
