"""Starts the server of command_server.py, and says how to ask it."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_SERVER = Path(__file__).with_name("command_server.py")
_TITLE_BYTES = 4096  # room for the command lines of forks in /proc/PID/cmdline
_NO_MARK = "-" * 32  # room for the mark of a Launcher in /proc/PID/environ
_LIMIT_S = 120


class CommandServer:
    """Programs that start in no time; `folder` holds the server's socket."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._socket = folder / "server"
        # One thread, as torchrun has it: OpenMP reads the number only once, and here.
        variables = {"OMP_NUM_THREADS": "1", **environment, "TOPOOPT_TEST_MARK": _NO_MARK}
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), str(self._socket), " " * _TITLE_BYTES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.communicate(timeout=_LIMIT_S)

    def wait(self) -> Self:
        """Until it has imported what it needs."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the command server did not start"
        return self

    def command(self, program: str) -> tuple[str, ...]:
        """What runs `program` (see command_server.py) with the arguments that follow."""
        return (sys.executable, "-IS", str(_SERVER), str(self._socket), program)


@functools.cache
def shared_server() -> CommandServer:
    """One for all tests of this process."""
    folder = tempfile.TemporaryDirectory(prefix="topoopt-test-commands-")
    server = CommandServer(Path(folder.name)).wait()
    atexit.register(folder.cleanup)
    atexit.register(server.close)  # before its folder goes
    return server
