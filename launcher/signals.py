"""Ctrl-C and other signals: one exception, at every stage, and no child process left behind."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILL_S = 10.0  # for killed ranks to end


class Interrupted(BaseException):
    """A signal requested a stop. Not an Exception, so that no library swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signal.Signals(signum)

    @property
    def exit_code(self) -> int:
        """A shell's exit code for a process ended by this signal: 130 for SIGINT."""
        return 128 + self.signum


_received: int | None = None
_noting = False
_noted: int | None = None


def _handle(signum: int, frame: FrameType | None) -> None:
    """Raises once; while the command cleans up after a signal, further signals change nothing."""
    global _received, _noted
    if _noting:
        _noted = signum
    elif _received is None:
        _received = signum
        raise Interrupted(signum)


def _note(signum: int, frame: FrameType | None) -> None:
    """Defers the signal to `check`, which raises where the command may be stopped again."""
    global _received
    if _received is None:
        _received = signum


def check() -> None:
    """Raises Interrupted if a signal came where raising was disabled, or where Python swallows
    exceptions (a finaliser, say)."""
    if _received is not None:
        raise Interrupted(_received)


@contextmanager
def noted() -> Iterator[Callable[[], Interrupted | None]]:
    """Inside, signals do not raise; the yielded function says whether one came.

    For code that has to end in its own way to keep its results.
    """
    global _noting, _noted
    _noting, _noted = True, None
    try:
        yield lambda: None if _noted is None else Interrupted(_noted)
    finally:
        _noting = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGINT, SIGTERM and SIGHUP into Interrupted inside the block.

    After an Interrupted they stay ignored: the process is about to end, and one more Ctrl-C must
    not change its exit code.
    """
    global _received
    _received = None
    before: dict[signal.Signals, Any] = {s: signal.signal(s, _handle) for s in HANDLED}
    try:
        yield
    except Interrupted:
        before = dict.fromkeys(HANDLED, signal.SIG_IGN)
        raise
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def elastic_launch_signals(grace_s: float, spared: Collection[int] = ()) -> Iterator[None]:
    """Around torch's elastic launcher, which installs handlers of its own and leaves them.

    Inside, SIGTERM and SIGHUP reach the ranks as torchrun sends them. SIGINT is kept from torch: it
    ends the ranks by SIGTERM, without messages (each would print the traceback of a
    KeyboardInterrupt once out of a collective), and after `grace_s` by SIGKILL. At the end our
    handlers are restored, and all remaining children except `spared` are killed. A signal during
    the kills is left to `check`.
    """
    from torch.distributed.elastic.multiprocessing import SignalException

    global _received
    handled = (*HANDLED, signal.SIGQUIT, signal.SIGALRM)
    before = {signum: signal.getsignal(signum) for signum in handled}

    def interrupt(signum: int, frame: FrameType | None) -> None:
        logging.disable(logging.WARNING)  # the launcher would log every signal that it sends
        signal.signal(signal.SIGALRM, lambda *_: kill_children(spared))
        signal.setitimer(signal.ITIMER_REAL, grace_s)
        _handle(signum, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except SignalException as error:
        _received = error.sigval
        raise Interrupted(error.sigval) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        logging.disable(logging.NOTSET)
        for signum in before:
            signal.signal(signum, _note if signum in HANDLED else signal.SIG_IGN)
        kill_children(spared)
        for signum, handler in before.items():
            signal.signal(signum, handler)


def children() -> list[int]:
    """Process ids of this process's children, ended but not yet reaped ones included."""
    found = []
    me = os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended since the listing
        if parent == me:
            found.append(int(entry))
    return found


def kill_children(spared: Collection[int] = ()) -> None:
    """Kills the remaining ranks, with their process groups, and waits until they are gone."""
    deadline = time.monotonic() + _KILL_S
    for pid in children():
        if pid in spared:
            continue
        try:
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        _reap(pid, deadline)


def _reap(pid: int, deadline: float) -> None:
    """Reaps a killed child; gives up at `deadline` on one that the kernel does not let die."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # its Popen object has reaped it
    finally:
        os.close(handle)
