"""A job of benchmarks/faults.py: ranks that communicate and check every result until told to stop.

The ranks are forked from the benchmark, each in the namespace of its host. They write how far they
are into memory that they share with it; what they say (their stderr) it reads line by line, with
the time of each.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from fault_injection.deeds import DEEDS, ELEMENTS, PART
from torch_topoopt.processes.rank_main import die_with
from torch_topoopt.runtime import backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.settings import Setting

MOST_RANKS = 64
START_LIMIT_S = 60.0
_LAST_LINES = 40
_TICK_S = 0.005
_BASE_STEPS, _BASE_S = 6, 0.5
_AHEAD_STEPS = 2  # no rank is further ahead of another

_LOST = re.compile(r"torch_topoopt WARNING: lost the link (.+?): (.*)")
_BACK = re.compile(r"torch_topoopt WARNING: the link (.+) is back")
_ERROR = re.compile(r"faults: error at (\S+): (.*)")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _RankBoard(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_int64),  # that are done
        ("wrong", ctypes.c_int64),  # results
        ("deed", ctypes.c_int64),  # 1 + index in DEEDS of what the rank shall do; 0: nothing
        ("deed_step", ctypes.c_int64),  # and in which step
        ("deed_at", ctypes.c_double),  # time.monotonic() when it began to
    )


class _Board(ctypes.Structure):
    _fields_ = (("stopping", ctypes.c_int64), ("ranks", _RankBoard * MOST_RANKS))


@dataclass(frozen=True)
class Event:
    """A line of a rank: a warning or an error. `at` is time.monotonic()."""

    at: float
    rank: int
    text: str
    is_error: bool = False


@dataclass
class RankProcess:
    """One rank as the benchmark sees it; `exit_code` is None while it runs, -N after signal N."""

    rank: int
    pid: int
    stderr: int
    exit_code: int | None = None
    rest: bytes = b""
    lost: set[str] = field(default_factory=set)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))


@dataclass(frozen=True)
class Usage:
    """Of each rank that runs: open descriptors and resident memory."""

    descriptors: dict[int, int]
    memory_bytes: dict[int, int]


class CheckedJob:
    """`setting.ranks` ranks of one process group; a context, after which none of them is left.

    `limit_s` is the timeout of the group's collectives.
    """

    def __init__(self, setting: Setting, backend_name: str, limit_s: float) -> None:
        self.setting = setting
        self.backend = backend_name
        self.limit_s = limit_s
        self.events: list[Event] = []
        self.step_s = 0.0
        memory = mmap.mmap(-1, ctypes.sizeof(_Board))
        self._board = _Board.from_buffer(memory)
        self._selector = selectors.DefaultSelector()
        with socket.create_server(("", 0)) as free:
            self._port = free.getsockname()[1]
        self.ranks: list[RankProcess] = []
        self._store: dist.TCPStore | None = None

    def start(self, beside: Callable[[], None] = lambda: None) -> None:
        """Starts the ranks and measures a step; raises RuntimeError if they do not communicate.

        `beside` is called before the ranks meet.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            for rank in range(self.setting.ranks):
                self.ranks.append(self._fork(rank))
            # After the forks, for these have threads.
            beside()
            self._store = dist.TCPStore(
                self._address, self._port, is_master=True, wait_for_workers=False
            )
            if not self.steps_done(2, START_LIMIT_S):
                raise RuntimeError(f"no {self.backend} job has started: {self.last_words()}")
            self.step_s = self._usual_step_s()
        except BaseException:
            self.kill()
            raise

    @property
    def _address(self) -> str:
        assert self.setting.fabric is not None, "the ranks are hosts of a fabric"
        return self.setting.fabric.management_address

    def _fork(self, rank: int) -> RankProcess:
        near, far = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.dup2(far, 2)
            os.close(far)
            os.close(near)
            _become_rank(self, rank, parent)
        os.close(far)
        os.set_blocking(near, False)
        process = RankProcess(rank, pid, near)
        self._selector.register(near, selectors.EVENT_READ, process)
        return process

    # ---- what the ranks do ----

    def run_rank(self, rank: int) -> None:
        """The whole life of a rank."""
        self.setting.become(rank)
        os.environ.update(
            MASTER_ADDR=self._address,
            MASTER_PORT=str(self._port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        torch.set_num_threads(1)
        dist.init_process_group(self.backend, timeout=timedelta(seconds=self.limit_s))
        own = self._board.ranks[rank]
        step = 0
        while True:
            deed = own.deed if own.deed_step == step else 0
            if deed:
                own.deed_at = time.monotonic()
                own.wrong += list(DEEDS.values())[deed - 1](rank, self.setting.ranks)
            stopping, wrong = communicate(
                rank, self.setting.ranks, step, bool(self._board.stopping), bool(deed)
            )
            own.wrong += wrong
            step += 1
            own.steps = step
            if stopping:
                break
        dist.destroy_process_group()

    # ---- what the benchmark sees ----

    def pump(self, seconds: float) -> None:
        """Reads what the ranks say for so long, or until one has said something."""
        for key, _ in self._selector.select(seconds):
            self._read(key.data)
        for process in self.ranks:
            if process.exit_code is None:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if pid:
                    process.exit_code = os.waitstatus_to_exitcode(status)

    def _read(self, process: RankProcess) -> None:
        now = time.monotonic()
        try:
            data = os.read(process.stderr, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(process.stderr)
            os.close(process.stderr)
            return
        *lines, process.rest = (process.rest + data).split(b"\n")
        for line in lines:
            self._note(process, line.decode(errors="replace"), now)

    def _note(self, process: RankProcess, line: str, now: float) -> None:
        process.last_lines.append(line)
        if found := _ERROR.match(line):
            event = Event(float(found[1]), process.rank, found[2], is_error=True)
            self.events.append(event)
        elif " WARNING: " in line or "closed a connection" in line:
            self.events.append(Event(now, process.rank, line.partition("WARNING: ")[2] or line))
        if found := _LOST.match(line):
            process.lost.add(found[1])
        elif found := _BACK.match(line):
            process.lost.discard(found[1])

    def wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether `condition` has become true within the limit."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.pump(_TICK_S)
        return True

    def pause(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def steps_done(self, count: int, limit_s: float) -> bool:
        """Whether every rank has done `count` more steps within the limit; not if one ends."""
        wanted = max(self._steps()) + count
        self.wait(lambda: self.least_steps >= wanted or self.any_ended, limit_s)
        return self.least_steps >= wanted

    def measure_steps(self, count: int, limit_s: float) -> float | None:
        """Seconds of one step; None if they are not done within the limit."""
        begin, first = time.monotonic(), min(self._steps())
        if not self.steps_done(count, limit_s):
            return None
        return (time.monotonic() - begin) / (min(self._steps()) - first)

    def _usual_step_s(self) -> float:
        """The least of some measurements: the first steps take longer."""
        deadline = time.monotonic() + _BASE_S
        measured: list[float] = []
        while not measured or time.monotonic() < deadline:
            step_s = self.measure_steps(_BASE_STEPS, START_LIMIT_S)
            if step_s is None:
                raise RuntimeError(f"a {self.backend} job does not go on: {self.last_words()}")
            measured.append(step_s)
        return min(measured)

    @property
    def least_steps(self) -> int:
        return min(self._steps())

    def _steps(self) -> list[int]:
        return [own.steps for own in self._board.ranks[: self.setting.ranks]]

    @property
    def wrong(self) -> int:
        return sum(own.wrong for own in self._board.ranks[: self.setting.ranks])

    @property
    def any_ended(self) -> bool:
        return any(process.exit_code is not None for process in self.ranks)

    @property
    def running(self) -> list[RankProcess]:
        return [process for process in self.ranks if process.exit_code is None]

    @property
    def has_lost_cables(self) -> bool:
        return any(process.lost for process in self.ranks)

    def order(self, deed: str, ranks: list[int]) -> None:
        """Makes ranks do something in one of the next steps, all in the same."""
        step = max(self._steps()) + _AHEAD_STEPS
        for rank in ranks:
            self._board.ranks[rank].deed_step = step
            self._board.ranks[rank].deed = 1 + list(DEEDS).index(deed)

    def ordered_at(self, ranks: list[int], limit_s: float) -> float:
        """When the last of these ranks began to do what it was ordered to."""
        self.wait(lambda: all(self._board.ranks[rank].deed_at for rank in ranks), limit_s)
        return max(self._board.ranks[rank].deed_at for rank in ranks) or time.monotonic()

    def last_words(self) -> str:
        if errors := [event for event in self.events if event.is_error]:
            return f"rank {errors[0].rank}: {errors[0].text}"
        return "; ".join(
            f"rank {process.rank}: {process.last_lines[-1]}"
            for process in self.ranks
            if process.last_lines
        )

    def usage(self) -> Usage:
        descriptors, memory = {}, {}
        for process in self.running:
            with contextlib.suppress(OSError):  # it has just ended
                own = Path(f"/proc/{process.pid}")
                descriptors[process.rank] = len(os.listdir(own / "fd"))
                pages = int((own / "statm").read_text().split()[1])
                memory[process.rank] = pages * _PAGE_BYTES
        return Usage(descriptors, memory)

    def stop(self, limit_s: float = 20.0) -> bool:
        """Ends the job in good order; whether all ranks ended by themselves, with code 0."""
        self._board.stopping = 1
        ended = self.wait(lambda: not self.running, limit_s)
        self.kill()
        return ended and all(process.exit_code == 0 for process in self.ranks)

    def kill(self) -> None:
        for process in self.running:
            os.kill(process.pid, signal.SIGKILL)
        for process in self.running:
            _, status = os.waitpid(process.pid, 0)
            process.exit_code = os.waitstatus_to_exitcode(status)
        for process in self.ranks:
            self._drain(process)
        self._store = None

    def _drain(self, process: RankProcess) -> None:
        while process.stderr in self._selector.get_map():
            before = process.rest, len(process.last_lines)
            self._read(process)
            if before == (process.rest, len(process.last_lines)):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(process.stderr)
                    os.close(process.stderr)


def communicate(
    rank: int, world: int, step: int, stopping: bool, has_done_deed: bool
) -> tuple[bool, int]:
    """One of everything; (whether some rank stops, how many results were wrong)."""
    summed = torch.arange(ELEMENTS) * (rank + 1) + step
    summed[-1] = int(stopping)
    wrong = 0
    if not has_done_deed:
        dist.all_reduce(summed)
        expected = torch.arange(ELEMENTS) * (world * (world + 1) // 2) + world * step
        wrong += int(not torch.equal(summed[:-1], expected[:-1]))
    sent = torch.arange(PART * world) + rank * step
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    own = torch.arange(rank * PART, (rank + 1) * PART)
    wrong += int(not torch.equal(received, torch.cat([own + peer * step for peer in range(world)])))
    root = step % world
    sent_by_root = torch.full((PART,), step if rank == root else -1)
    dist.broadcast(sent_by_root, root)
    wrong += int(not bool((sent_by_root == step).all()))
    return bool(summed[-1]) and not has_done_deed, wrong


def _become_rank(job: CheckedJob, rank: int, parent: int) -> None:
    """Ends this process as the interpreter would."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark ends its ranks
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(parent)
        job.run_rank(rank)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
        _say(f"SystemExit: {ending.code}")
    except BaseException as error:
        _say(f"{type(error).__name__}: {error}")
        sys.last_value = error  # where what runs at exit finds it, and notifies the others
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            # What the interpreter would call at exit; what else is registered is the benchmark's.
            backend._leave()
        os._exit(code)


def _say(error: str) -> None:
    line = f"faults: error at {time.monotonic():.6f}: {' '.join(error.split())}\n"
    os.write(2, line.encode())
