"""Runs `topoopt` and Python scripts without starting an interpreter for each: a server that has
imported what they need, and forks.

    python command_server.py SOCKET            the server; ends when its standard input closes
    python -IS command_server.py SOCKET topoopt|python ARGUMENTS...     a client

The client hands over its arguments, folder, environment and standard streams, and ends with the
exit code of the command. A command whose client is gone is killed.
"""

import array
import atexit
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

_STREAMS = 3


def serve(path: str) -> None:
    import runpy

    from torch._subclasses import fake_tensor  # noqa: F401  (what every profile imports)

    from torch_topoopt.launcher import main  # noqa: F401

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        readable, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in readable:
            return
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(client, runpy)
        client.close()


def _attend(client: socket.socket, runpy: object) -> None:
    """In a process of its own: runs the command in a further one, and reports how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, ancillary, _, _ = client.recvmsg(1 << 20, socket.CMSG_LEN(_STREAMS * 4))
    request = json.loads(data)
    streams = array.array("i", ancillary[0][2])
    command = os.fork()
    if command == 0:
        client.close()
        os.setsid()
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
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    code = 0
    try:
        if program == "topoopt":
            from torch_topoopt.launcher.main import main

            sys.argv = ["topoopt", *arguments]
            code = main(arguments)
        elif arguments[0] == "-m":
            sys.argv = arguments[1:]
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
    if sys.argv[2:]:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1])
