"""A thread of the launcher that watches the job while it trains, and warns of silent problems.

It warns once of every stall: a time in which no rank makes progress while at least one waits in an
operation. It also warns, once, when the run folder has been deleted or is not writable. Training
needs neither, so it continues. A deleted folder is recreated with its documents from the start of
training.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.statuses import read_statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch_topoopt.launcher.run.folder import RunFolder
    from torch_topoopt.runtime.metrics import MetricsWriter
    from torch_topoopt.supervision.statuses import Status

STALL_VARIABLE = "TOPOOPT_STALL_WARNING_S"
_STALL_S = 30.0
# Why a report has a gap: see report.run_folder.
DELETED = "the run folder was deleted: what was measured until then is lost"
UNWRITTEN = "the run folder could not be written ({}): what was measured then is missing"
_INTERVAL_S = 1.0
_FRESH_S = 5.0  # a rank writes its status every second


def stall_limit_s(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds without progress before a warning; infinite if the user wants none.

    Raises InputError.
    """
    text = environment.get(STALL_VARIABLE, str(_STALL_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InputError(
            f"{STALL_VARIABLE}: {text!r} is not a number of seconds; 0 means no warning"
        )
    return seconds or math.inf


class StallWatch:
    """Finds times in which no rank makes progress; `limit_s` as in stall_limit_s()."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._progress: dict[int, tuple[int, int, int]] = {}
        self._since_s = 0.0
        self._warned = False

    def stalled(self, ranks: Mapping[int, Status], now_s: float, now_ns: int) -> bool:
        """Whether a stall has just become long enough: True once for each of them.

        `now_s` is of a monotonic clock, `now_ns` since the epoch, as on the ranks. A rank that
        computes for long is no stall, unless others wait for it.
        """
        progress = {r: (s.iteration, s.called, s.unfinished) for r, s in ranks.items()}
        if progress != self._progress:
            self._progress, self._since_s, self._warned = progress, now_s, False
            return False
        if self._warned or now_s - self._since_s < self._limit_s:
            return False
        waits = any(status.unfinished for status in ranks.values())
        known = any(now_ns - status.time_ns < _FRESH_S * 1e9 for status in ranks.values())
        self._warned = waits and known
        return self._warned


class FolderWatch:
    """Detects a deleted or unwritable run folder; `metrics` notes it."""

    def __init__(self, folder: RunFolder, metrics: MetricsWriter) -> None:
        self._folder = folder
        self._metrics = metrics
        self._warned = False
        folder.keep()

    def look(self) -> None:
        """Warns on the first problem."""
        try:
            restored = self._folder.restore()
            self._folder.probe()
        except OSError as error:
            self._metrics.error = error.strerror or str(error)
            self._warn(f"cannot be written: {self._metrics.error}")
            return
        if restored:
            self._metrics.write("gap", why=DELETED)
            self._warn("was deleted, and is made again")

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            console.warning(
                f"run-dir: {self._folder.path} {why}; training goes on, and the report will say "
                "what it lacks"
            )


@contextlib.contextmanager
def watching(folder: RunFolder, metrics: MetricsWriter) -> Iterator[None]:
    """Inside, the job of that run folder is watched."""
    limit_s = stall_limit_s()
    stalls, files = StallWatch(limit_s), FolderWatch(folder, metrics)

    def look() -> None:
        files.look()
        try:
            ranks = {
                rank: status
                for rank, status in read_statuses(JobFolder(folder.path)).items()
                if status.alive
            }
        except (DocumentError, OSError):
            return  # the ranks are ending, or the folder is broken
        if stalls.stalled(ranks, time.monotonic(), time.time_ns()):
            console.warning(
                f"no rank has made progress for {limit_s:g} s; `topoopt inspect {folder.path}` "
                "names the rank that the others wait for"
            )

    try:
        with repeating(look, _INTERVAL_S, "topoopt job watch"):
            yield
    finally:
        files.look()


@contextlib.contextmanager
def repeating(look: Callable[[], None], interval_s: float, thread_name: str) -> Iterator[None]:
    """Inside, a thread calls `look` every `interval_s` seconds."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(interval_s):
            look()

    thread = threading.Thread(target=watch, name=thread_name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
