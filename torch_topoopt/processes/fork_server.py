"""Forks Python programs from one process that has imported PyTorch.

Importing PyTorch and its optimizers takes seconds of processor time. The ranks of emulated servers
and the processes that trace a script share one machine; a ForkServer starts each in 0.1 s.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

_LIMIT_S = 300.0  # to import PyTorch from a cold disk and to fork
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # <linux/prctl.h>
_TITLE_BYTES = 4096  # room for the command lines of the forks in /proc/PID/cmdline
_SET_AT_IMPORT = "1"  # torchrun's default of OMP_NUM_THREADS, which libgomp reads only once


class ForkServerError(Exception):
    """No program could be started; one line that says why."""


class ForkedProcess:
    """A program that runs, in the terms of subprocess.Popen; it is a child of this process."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = list(args)
        self.returncode: int | None = None  # negative: a signal

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another thread has collected it
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises subprocess.TimeoutExpired after `timeout` seconds."""
        if (code := self.poll()) is not None:
            return code
        descriptor = os.pidfd_open(self.pid)  # not reaped yet, so its number is not reused
        try:
            select.select([descriptor], [], [], timeout)
        finally:
            os.close(descriptor)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def kill_group(self) -> None:
        """Kills it and what it has started, data loaders for example, and waits for its end."""
        with contextlib.suppress(ProcessLookupError):  # the group may outlive it
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class ForkServer:
    """Imports PyTorch in a process of its own, until close().

    That process calls prepare() of the module `prepare` before it starts any program. Started
    programs outlive close(), but not this process.
    """

    def __init__(self, prepare: str = "") -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the server)
        command = [sys.executable, "-u", "-m", "torch_topoopt.processes.fork_server_main"]
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(*command, str(theirs.fileno()), str(os.getpid()), prepare),
                    " " * _TITLE_BYTES,
                ],
                env={"OMP_NUM_THREADS": _SET_AT_IMPORT, **os.environ},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process that imports PyTorch."""
        return self._process.pid

    def close(self) -> None:
        """Ends the server; harmless if it has ended."""
        self._socket.close()
        self._process.kill()  # it may be importing
        self._process.wait()
        self._log.close()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        streams: tuple[int, int, int] = (0, 1, 2),
    ) -> ForkedProcess:
        """Runs `python ARGUMENTS...`, that is `SCRIPT ...` or `-m MODULE ...`, in a new session.

        `streams` are the descriptors of its standard streams; it inherits the working directory.
        OMP_NUM_THREADS comes from `environment`, else from the server's own environment, else it is
        1. The kernel kills it when this process ends. Raises ForkServerError.
        """
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": os.getcwd(),
        }
        with os.fdopen(os.memfd_create("fork-request"), "w+b") as file:
            file.write(json.dumps(request).encode())
            file.flush()
            with _adopting_orphans():
                pid = self._ask([file.fileno(), *streams])
        return ForkedProcess(pid, arguments)

    def _ask(self, descriptors: list[int]) -> int:
        """Returns the number of the new process."""
        deadline = time.monotonic() + _LIMIT_S
        try:
            socket.send_fds(self._socket, [b"fork"], descriptors)
            self._socket.settimeout(max(0.0, deadline - time.monotonic()))
            answer = self._socket.recv(64)
        except TimeoutError:
            raise ForkServerError(f"PyTorch was not imported within {_LIMIT_S:g} s") from None
        except OSError:
            answer = b""
        if not answer:
            raise ForkServerError(f"the process that imports PyTorch ended: {self._last_words()}")
        return int(answer)

    def _last_words(self) -> str:
        self._process.kill()
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


@contextlib.contextmanager
def shared(server: ForkServer | None) -> Iterator[ForkServer]:
    """`server`, or a new one that ends with the block."""
    if server is not None:
        yield server
        return
    with ForkServer() as own:
        yield own


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Makes this process the parent of orphaned descendants, so that it can wait for them.

    The server forks twice, and the process in between ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
