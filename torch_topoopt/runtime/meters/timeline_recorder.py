"""Some iterations of this rank for `topoopt timeline`: begin and end of each, of its backward pass
and its operations, and the bytes sent by links, sampled every few milliseconds."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.runtime.meters.backward_watch import watch_backward
from torch_topoopt.supervision.recorded_timeline import FOLDER, LinkSample, RankTimeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import LinkTraffic

_INTERVAL_S = 0.005  # between samples of the links

log = logging.getLogger("torch_topoopt")


class TimelineRecorder:
    """Records iterations `first` to `end` - 1, once; `links()` are this rank's counters, and
    `operations()` the flight recorder's dump. Files go to a folder of the run."""

    def __init__(
        self,
        rank: int,
        server: int,
        iterations: tuple[int, int],
        links: Callable[[], list[LinkTraffic]],
        operations: Callable[[], bytes],
        run_dir: str,
    ) -> None:
        self._rank, self._server = rank, server
        self._first, self._end = iterations
        self._links, self._operations = links, operations
        self._folder = Path(run_dir) / FOLDER
        self._ends_ns: list[int] = []
        self._backward_ns: list[tuple[int, int]] = []
        self._begun_ns = 0
        self._samples: list[LinkSample] = []
        self._over = threading.Event()
        self._sampler: threading.Thread | None = None
        self._end_watch: Callable[[], None] = lambda: None

    def ended(self, number: int) -> None:
        """`number` iterations are over."""
        if number == self._first and not self._ends_ns:
            self._end_watch = watch_backward(lambda tensor: self._begin(), self._finish)
            self._sampler = threading.Thread(
                target=self._sample, name="topoopt timeline", daemon=True
            )
            self._sampler.start()
            self._ends_ns.append(time.time_ns())
        elif self._sampler is not None:
            self._ends_ns.append(time.time_ns())
            if number >= self._end:
                self._save()

    def close(self) -> None:
        """The job is over: the remaining iterations are not recorded."""
        if self._sampler is not None:
            log.warning("the job ended before iteration %d: no timeline", self._end)
            self._stop()

    def _begin(self) -> None:
        self._begun_ns = time.time_ns()

    def _finish(self) -> None:
        self._backward_ns.append((self._begun_ns, time.time_ns()))

    def _sample(self) -> None:
        while True:
            sent = tuple(of.sent_bytes for of in self._links() if of.source_port >= 0)
            self._samples.append(LinkSample(time.time_ns(), sent))
            if self._over.wait(_INTERVAL_S):
                return

    def _stop(self) -> None:
        assert self._sampler is not None
        self._over.set()
        self._sampler.join()
        self._sampler = None
        self._end_watch()

    def _save(self) -> None:
        operations = self._operations()
        self._stop()
        links = tuple(of.link for of in self._links() if of.source_port >= 0)
        timeline = RankTimeline(
            RankTimeline.VERSION, self._rank, self._server, self._first, tuple(self._ends_ns),
            tuple(self._backward_ns), links, tuple(self._samples),
        )  # fmt: skip
        try:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir()
            if operations:
                (self._folder / f"rank_{self._rank}").write_bytes(operations)
            timeline.save(self._folder / f"rank-{self._rank}.json")
        except OSError as error:  # training continues
            log.warning("the timeline cannot be written: %s", error)
