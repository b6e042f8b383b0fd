"""Ranks as forks of a process that has imported PyTorch, under torch's own elastic launcher.

torch starts a command per rank; ours is rank_main's (see ranks.py). Inside `forking` that command
becomes a request to a fork server if it runs a script with this process's Python.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.processes import rank_main
from torch_topoopt.processes.fork_server import ForkServerError
from torch_topoopt.runtime import forked_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.processes.fork_server import ForkedProcess, ForkServer


@contextlib.contextmanager
def forking(server: ForkServer | None) -> Iterator[None]:
    """Inside, ranks are forks of `server`; without one, programs as usual. Raises InputError."""
    if server is None:
        yield
        return
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    def start(
        arguments: list[str], env: dict[str, str], streams: tuple[int, int, int]
    ) -> ForkedProcess:
        try:
            return server.start(arguments, env, streams=streams)
        except ForkServerError as error:
            raise InputError(str(error)) from None

    class Handler(SubprocessHandler):  # type: ignore[misc]
        def _popen(self, args: Sequence[str], env: dict[str, str]) -> Any:
            arguments = arguments_to_fork(args)
            if arguments is None:
                return super()._popen(args, env)
            streams = (0, _descriptor(self._stdout, 1), _descriptor(self._stderr, 2))
            return start(arguments, env, streams)

    before = api.get_subprocess_handler
    api.get_subprocess_handler = Handler
    try:
        yield
    finally:
        api.get_subprocess_handler = before


def arguments_to_fork(command: Sequence[str]) -> list[str] | None:
    """The arguments of `python` for a fork equivalent to `command` (of ranks.py).

    None if it is not a Python program of this interpreter, or not just a script or module: it has
    flags other than -u, which the server has, too.
    """
    if command[3:4] != (rank_main.__file__,) or command[7:9] != (sys.executable, "-u"):
        return None
    per_server, namespaces, arguments = command[5], command[6], command[9:]
    if arguments[:1] != ("-m",) and arguments[0].startswith("-"):
        return None
    return ["-m", forked_rank.MODULE, per_server, namespaces, *arguments]


def _descriptor(file: Any, otherwise: int) -> int:
    return otherwise if file is None else int(file.fileno())
