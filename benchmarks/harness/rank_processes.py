"""Runs a function in several processes, forked so that torch is imported once for all of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher.errors import BAD_INPUT, OK, InputError
from torch_topoopt.links.errors import FabricError
from torch_topoopt.processes.rank_main import die_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_GRACE_S = 5.0  # for the others, once one has failed: they may know more about why


class RankError(RuntimeError):
    """A process failed or was late; the message says which, and with what."""


def exit_code_of(name: str, benchmark: Callable[[], None], *errors: type[Exception]) -> int:
    """Runs a whole benchmark; what it cannot do, `errors` among it, is one line on stderr."""
    try:
        benchmark()
    except (FabricError, InputError, RankError, ValueError, *errors) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return OK


def call_in_processes(
    count: int, function: Callable[[int], Any], *, limit_s: float, fresh: bool = False
) -> list[Any]:
    """[function(0), ..., function(count - 1)], each in a process of its own.

    `fresh` ones share no memory with this process; `function` must be one that can be pickled.

    All processes are gone when this returns, or raises RankError, whatever they did. They are also
    killed if this process ends.
    """
    processes = _Processes(count, function, "spawn" if fresh else "fork")
    try:
        return processes.results(limit_s)
    finally:
        processes.kill()


class _Processes:
    def __init__(self, count: int, function: Callable[[int], Any], method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        self._ends: list[Connection] = []
        self._processes = []
        sys.stdout.flush()
        try:
            for rank in range(count):
                near, far = context.Pipe(duplex=False)
                self._ends.append(near)
                process = context.Process(target=_main, args=(function, rank, os.getpid(), far))
                process.start()
                self._processes.append(process)
                far.close()
        except BaseException:
            self.kill()
            raise

    def results(self, limit_s: float) -> list[Any]:
        deadline = time.monotonic() + limit_s
        values: dict[int, Any] = {}
        errors: dict[int, str] = {}
        waiting: dict[Any, int] = dict(zip(self._ends, range(len(self._ends)), strict=True))
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                late = f"no answer within {limit_s:g} s"
                errors |= dict.fromkeys(waiting.values(), late) if not errors else {}
                break
            for end in ready:
                rank = waiting.pop(end)
                try:
                    error, value = end.recv()
                except EOFError:
                    self._processes[rank].join(1.0)
                    code = self._processes[rank].exitcode
                    error, value = f"ended without an answer, exit code {code}", None
                if error is None:
                    values[rank] = value
                else:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
                    errors[rank] = error
        if errors:
            raise RankError("; ".join(f"rank {rank}: {why}" for rank, why in errors.items()))
        return [values[rank] for rank in range(len(self._ends))]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for end in self._ends:
            end.close()


def _main(function: Callable[[int], Any], rank: int, parent: int, answer: Any) -> None:
    # Ctrl-C reaches the whole terminal; the parent ends us in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent)
    try:
        value = function(rank)
    except BaseException as error:
        if os.environ.get("TOPOOPT_LOG") == "debug":
            traceback.print_exc()
        answer.send((f"{type(error).__name__}: {error}", None))
    else:
        answer.send((None, value))
    sys.stdout.flush()
    answer.close()
