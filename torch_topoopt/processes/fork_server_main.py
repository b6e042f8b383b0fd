"""Imports PyTorch once, then forks.

`python -um torch_topoopt.processes.fork_server_main FD PARENT PREPARE ROOM`, started by
fork_server.py. PREPARE is a module whose prepare() is called before the first fork, or "". FD is a
socket. Every message on it brings four descriptors: a file with the request, an object
{"arguments": ..., "environment": ..., "folder": ...}, and the standard streams of the program. The
answer is the number of the new process, a child of PARENT, the requesting process. ROOM reserves
space in the command line, which forks overwrite with their own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import types
from pathlib import Path
from typing import NoReturn

from torch_topoopt.processes.rank_main import die_with

_DESCRIPTORS = 4
_ARGUMENTS_AT = 45  # arg_start in /proc/PID/stat, counted from the field after the name: proc(5)


def main(descriptor: int, parent: int, prepare: str) -> None:
    """Serves until the other end is closed; in a fork, runs its program and ends."""
    die_with(parent)
    import torch
    import torch._dynamo  # every optimizer imports it
    import torch.distributed  # noqa: F401

    if prepare:
        importlib.import_module(prepare).prepare()
    gc.collect()
    gc.freeze()  # forks share memory that the collector never writes to
    of_server = frozenset(sys.modules)
    connection = socket.socket(fileno=descriptor)
    while True:
        _, descriptors, _, _ = socket.recv_fds(connection, 16, _DESCRIPTORS)
        if len(descriptors) < _DESCRIPTORS:
            return
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)  # makes the program a child of `parent`
            _wait_for_end_of(os.getppid(), parent)
            die_with(parent)
            connection.send(str(os.getpid()).encode())
            connection.close()
            code: object = None
            try:
                _run(*descriptors)
            except SystemExit as ending:
                code = ending.code
            _end(code, of_server)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def run_as_main(arguments: list[str]) -> None:
    """Runs `python ARGUMENTS...` in this process, as the interpreter would.

    `arguments` are SCRIPT ... or -m MODULE .... Prints an exception of the script and raises
    SystemExit; the script may raise SystemExit, too.
    """
    _set_title([sys.executable, *arguments])
    main_module = types.ModuleType("__main__")
    main_module.__annotations__ = {}
    # multiprocessing unpickles objects of __main__ under the second name
    sys.modules.update(__main__=main_module, __mp_main__=main_module)
    try:
        if arguments[0] == "-m":
            _, name, *rest = arguments
            _set_path(os.getcwd())
            sys.argv = [name, *rest]
            runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # the interpreter's own
        else:
            _run_script(main_module, arguments)
    except SystemExit as ending:
        raise ending.with_traceback(None) from None  # its frames would keep the script's objects
    except BaseException as error:  # a script may raise anything
        _report(error)
        error.__traceback__ = None
        raise SystemExit(1) from None


def _run_script(module: types.ModuleType, arguments: list[str]) -> None:
    path = arguments[0]
    _set_path(os.path.dirname(os.path.realpath(path)))
    sys.argv = list(arguments)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    names = {"__file__": path, "__cached__": None, "__loader__": loader}
    vars(module).update(names, __builtins__=__builtins__)
    try:
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except OSError as error:
        sys.exit(f"{sys.executable}: can't open file {path!r}: {error}")
    exec(code, vars(module))


def _report(error: BaseException) -> None:
    """Prints as the interpreter does, without the frames of this file; ends after Ctrl-C.

    Leaves the error where exit handlers look for it: one of them broadcasts it to the other ranks.
    """
    sys.last_value = error
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename in _NOT_THE_SCRIPTS:
        where = where.tb_next
    sys.excepthook(type(error), error.with_traceback(where), where)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


_NOT_THE_SCRIPTS = (__file__, runpy.__file__, "<frozen runpy>")


def _run(request_file: int, *streams: int) -> None:
    os.setsid()
    with os.fdopen(request_file, "rb") as file:
        file.seek(0)
        request = json.load(file)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _as_if_imported_here()
    run_as_main(request["arguments"])


def _end(code: object, of_server: frozenset[str]) -> NoReturn:
    """Ends the program as the interpreter does at the end of a script or at SystemExit(code).

    It finalises only the program's own modules, which flushes open files: finalising the server's
    imports would take a second.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for name in reversed([*sys.modules]):
        if name not in of_server or name in ("__main__", "__mp_main__"):
            del sys.modules[name]
    _write_files()
    gc.collect()
    _write_files()
    ctypes.CDLL(None).fflush(None)
    os._exit((code or 0) & 255)


def _write_files() -> None:
    """Flushes open files, since they are freed in no defined order."""
    files = [file for file in gc.get_objects() if isinstance(file, io.IOBase)]
    for file in (*files, sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, None, or without a reader
            file.flush()


def _as_if_imported_here() -> None:
    """Gives this fork its own seed of NumPy and number of threads, as if it had imported them."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    # only if it differs: the call makes a thread pool, after which further forks may fail
    # (ParallelOpenMP.cpp, "Invalid thread pool!")
    if threads.isdecimal() and int(threads) not in (0, torch.get_num_threads()):
        torch.set_num_threads(int(threads))


def _set_path(folder: str) -> None:
    """Replaces the first entry of sys.path, the server's own; `python -P` has none."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _set_title(command: list[str]) -> None:
    """Shows `command` in /proc/PID/cmdline, for ps and pkill -f; cut if there is no room."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    start, end = map(int, fields.rpartition(")")[2].split()[_ARGUMENTS_AT : _ARGUMENTS_AT + 2])
    title = b"\0".join(map(os.fsencode, command))[: end - start - 1]
    ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def _wait_for_end_of(process: int, parent: int) -> None:
    """Waits until this process's parent `process` has ended and `parent` has adopted it."""
    if process == parent:
        return
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [])
    os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
