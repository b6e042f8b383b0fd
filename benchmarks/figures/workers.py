"""Cells in worker processes, each with a limit of time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
from typing import TYPE_CHECKING

from figures.cell import Cell, CellResult, compute

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

_SPAWN = multiprocessing.get_context("spawn")  # a fork would share threads of libraries
_CLOSING_S = 5.0
_ENDING_S = 20.0  # for an exclusive cell that is asked to end


def run_in_processes(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, CellResult]]:
    """Every cell with its result, as they are done, by `jobs` processes; exclusive ones one by one
    after the others.

    A process that takes too long or dies is replaced. Where the caller stops early (an exception,
    Ctrl-C), the processes and what they started are killed before this returns.
    """
    shared = [cell for cell in cells if not cell.exclusive]
    yield from _run(shared, jobs)
    yield from _run([cell for cell in cells if cell.exclusive], 1)


def _run(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, CellResult]]:
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Cell, CellResult]] = queue.SimpleQueue()
    for cell in cells:
        waiting.put(cell)
    workers = [_Worker(waiting, done) for _ in range(min(jobs, len(cells)))]
    try:
        for worker in workers:
            worker.start()
        for _ in cells:
            yield done.get()
    finally:
        with _no_interruption():
            for worker in workers:
                worker.stop()


@contextlib.contextmanager
def _no_interruption() -> Iterator[None]:
    """A second Ctrl-C must not end what takes the processes away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Worker(threading.Thread):
    """Feeds one process, from `waiting` to `done`."""

    def __init__(
        self,
        waiting: queue.SimpleQueue[Cell],
        done: queue.SimpleQueue[tuple[Cell, CellResult]],
    ) -> None:
        super().__init__(daemon=True)
        self._waiting = waiting
        self._done = done
        self._stopped = False
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._exclusive = False

    def run(self) -> None:
        while not self._stopped:
            try:
                cell = self._waiting.get_nowait()
            except queue.Empty:
                break
            self._done.put((cell, self._result(cell)))
        self._end()

    def stop(self) -> None:
        """Returns when process and thread have ended."""
        self._stopped = True
        self._end()
        if self.is_alive():
            self.join(_CLOSING_S)

    def _result(self, cell: Cell) -> CellResult:
        problem = "the process died"
        try:
            pipe = self._opened()
            self._exclusive = cell.exclusive
            pipe.send((cell.function, cell.arguments))
            if pipe.poll(cell.limit_s):
                result: CellResult = pipe.recv()
                return result
            problem = f"not done after {cell.limit_s:g} s"
        except (EOFError, OSError):
            pass
        self._end()
        return CellResult(None, problem, 0.0, 0.0)

    def _opened(self) -> Connection:
        with self._lock:
            if self._stopped:
                raise EOFError
            if self._pipe is None:
                self._pipe, theirs = _SPAWN.Pipe()
                self._process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=False)
                self._process.start()
                theirs.close()
            return self._pipe

    def _end(self) -> None:
        """Kills the process, and what it started and did not end."""
        with self._lock:
            process, self._process = self._process, None
            self._pipe = None
        if process is not None:
            assert process.pid is not None
            if self._exclusive:
                process.terminate()
                process.join(_ENDING_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # also where it has not made its group yet
            process.join(_CLOSING_S)


def _serve(pipe: Connection) -> None:
    """The process: a cell after another, until the other end is closed."""
    os.setsid()  # Ctrl-C is the parent's, and one signal ends all that is started here
    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(compute(*pipe.recv()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself


def _end(number: int, frame: object) -> None:
    """What the cell has opened is closed on the way out."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)
