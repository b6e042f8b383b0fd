"""Runs `topoopt` and Python scripts without starting an interpreter for each: a server that has
imported what they need, and forks.

    python command_server.py SOCKET ROOM            the server; ends when its standard input closes
    python -IS command_server.py SOCKET topoopt|module|python ARGUMENTS...     a client

`module` is `python -m torch_topoopt.launcher.main`. ROOM is blank, and only there to be overwritten
by the command lines of forks. The client hands over its arguments, folder, environment, network
namespace and standard streams, and ends with the exit code of the command. A command whose client
is gone is killed.

The ranks of a command are forked from it, for it has imported what a ForkServer imports; so a job
of some ranks costs less than a second of a processor instead of seven. Commands that a test
started as processes of their own (Launcher.start) have the ForkServer of the product.
"""

import array
import atexit
import ctypes
import io
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

_STREAMS = 3
_MARK = "TOPOOPT_TEST_MARK"
_ENVIRONMENT_AT = 47  # env_start in /proc/PID/stat, counted from the field after the name: proc(5)
# Forks run these with `-m`, and the launcher has imported them.
_RUN_BY_NAME = ("torch_topoopt.runtime.forked_rank", "torch_topoopt.profile.script.child")
_NAMESPACES = {"net": 0x40000000, "mnt": 0x00020000, "uts": 0x04000000}  # <sched.h>


def serve(path: str) -> None:
    import gc
    import runpy

    from sklearn import datasets, model_selection  # noqa: F401  (what examples import)
    from torch import _dynamo  # noqa: F401  (what a ForkServer imports)
    from torch._subclasses import fake_tensor  # noqa: F401  (what every profile imports)

    from torch_topoopt.runtime import before_fork

    before_fork.prepare()  # ranks are forks of forks of this process
    _import_everything()
    gc.collect()
    gc.freeze()  # memory that is never collected is never written to, and forks share it
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        readable, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in readable:
            os._exit(0)  # taking PyTorch apart takes a second
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(client, runpy)
        client.close()


def _import_everything() -> None:
    """The whole package, of which each command would import a part, but what `-m` runs."""
    import importlib
    import pkgutil

    import torch_topoopt

    for module in pkgutil.walk_packages(torch_topoopt.__path__, "torch_topoopt."):
        if module.name not in _RUN_BY_NAME and not module.name.endswith("_main__"):
            with suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)


def _attend(client: socket.socket, runpy: object) -> None:
    """In a process of its own: runs the command in a further one, and reports how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, ancillary, _, _ = client.recvmsg(1 << 20, socket.CMSG_LEN(_STREAMS * 4))
    request = json.loads(data)
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    client_process, _, _ = struct.unpack("3i", credentials)
    streams = array.array("i", ancillary[0][2])
    command = os.fork()
    if command == 0:
        client.close()
        os.setsid()
        _enter_namespaces(client_process)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os._exit(_run(request, runpy))
    for stream in streams:
        os.close(stream)
    handle = os.pidfd_open(command)
    readable, _, _ = select.select([handle, client], [], [])
    if handle not in readable:
        os.killpg(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    with suppress(OSError):
        client.sendall(bytes([os.waitstatus_to_exitcode(status) & 255]))
    os._exit(0)


def _run(request: dict, runpy: object) -> int:
    program, *arguments = request["arguments"]
    if program == "python" and arguments[0] == "-u":  # all is written when the command ends
        del arguments[0]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _show_mark(os.environ.get(_MARK, ""))
    _fork_ranks_from_here()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    code = 0
    try:
        if program in ("topoopt", "module"):
            from torch_topoopt.launcher.main import main

            folders = {"topoopt": os.path.dirname(sys.executable), "module": os.getcwd()}
            sys.path[0] = folders[program]
            sys.argv = ["topoopt", *arguments]
            code = main(arguments)
        elif arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.modules.pop(arguments[1], None)
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code


def _enter_namespaces(process: int) -> None:
    """Goes where `ip netns exec` has brought the client."""
    for name, flag in _NAMESPACES.items():
        there = f"/proc/{process}/ns/{name}"
        if os.readlink(there) == os.readlink(f"/proc/self/ns/{name}"):
            continue
        descriptor = os.open(there, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, flag) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {there}")
        os.close(descriptor)


def _show_mark(mark: str) -> None:
    """Writes `mark` over the server's own in /proc/PID/environ, where tests look for processes."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[_ENVIRONMENT_AT : _ENVIRONMENT_AT + 2])
    own = Path("/proc/self/environ").read_bytes()
    at = own.find(f"{_MARK}=".encode())
    room = own.find(b"\0", at) - at - len(_MARK) - 1
    if at >= 0 and end - start > at:
        ctypes.memmove(start + at + len(_MARK) + 1, mark.encode().ljust(room, b"-")[:room], room)


class _ForkedServer:
    """The process of a ForkServer, in the terms of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)


def _fork_ranks_from_here() -> None:
    """Makes every ForkServer a fork of this process, which has imported what that would."""
    from torch_topoopt.processes.fork_server import ForkServer

    def fork(self: ForkServer, prepare: str = "") -> None:
        self._socket, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the server)
        parent = os.getpid()
        with theirs:
            pid = os.fork()
            if pid == 0:
                try:
                    _serve_forks(theirs.fileno(), parent, self._log.fileno(), prepare)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
        self._process = _ForkedServer(pid)

    ForkServer.__init__ = fork


def _serve_forks(descriptor: int, parent: int, log: int, prepare: str) -> None:
    """As `python -um torch_topoopt.processes.fork_server_main` with these streams would."""
    from torch_topoopt.processes import fork_server_main

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for target, stream in enumerate((nothing, log, log)):
        os.dup2(stream, target)
    os.closerange(_STREAMS, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    atexit._clear()
    atexit.register(sys.modules["torch_topoopt.runtime.backend"]._leave)  # as its import does
    for name in _RUN_BY_NAME:
        sys.modules.pop(name, None)
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout, sys.stderr = (_unbuffered(number) for number in (1, 2))
    fork_server_main.main(descriptor, parent, prepare)
    os._exit(0)


def _unbuffered(descriptor: int) -> io.TextIOWrapper:
    """A stream as `python -u` has it."""
    return io.TextIOWrapper(open(descriptor, "wb", 0), write_through=True)


def ask(path: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = {
            "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ),
        }  # fmt: skip
        streams = array.array("i", range(_STREAMS))
        server.sendmsg(
            [json.dumps(request).encode()],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)],
        )
        answer = server.recv(1)
    return answer[0] if answer else 255


if __name__ == "__main__":
    if sys.argv[2].strip():
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1])
