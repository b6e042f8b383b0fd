"""A folder in which the commands of a page run as they are printed.

`topoopt`, `python` and `torchrun` are answered by one server that has imported torch
(support/commands.py), so a command costs what it does and no start-up. `sudo` runs what follows:
tests that need root run as root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pages import ROOT, files
from support.commands import CommandServer
from support.limits import limit_s

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_START_LIMIT_S = 120
COMMAND_LIMIT_S = 240  # where nothing else runs


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str  # standard output and error, in their order


class Workshop:
    """`run` takes what a reader would type; whatever a command started is killed when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "page"
        self._programs = folder / "bin"
        self._server: CommandServer | None = None

    def __enter__(self) -> Self:
        self.clear()
        self._programs.mkdir()
        self._server = CommandServer(self.folder.parent, PYTHONPATH=str(ROOT / "tests"))
        for name in ("topoopt", "python"):
            self.program(name, f'exec {shlex.join(self._server.command(name))} "$@"')
        ranks = f"PYTHON_EXEC={self._programs / 'python'}"
        self.program("torchrun", f'{ranks} exec python -m torch.distributed.run "$@"')
        self.program("sudo", 'exec "$@"')
        self._server.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()

    def clear(self) -> None:
        """Begins a page: a folder with the README's script, the examples and the benchmarks."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for name in ("examples", "benchmarks"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / ".venv").mkdir()
        (self.folder / ".venv" / "bin").symlink_to(self._programs)  # sudo finds nothing by PATH
        (self.folder / "train.py").write_text(files("README.md")["train.py"])

    def run(self, text: str) -> Outcome:
        """Runs a command line in bash; fails the test if it takes longer than its limit."""
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PET_")},
            "PATH": f"{self._programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "120",
        }
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.PIPE,  # that ends at once, also where /dev/null is no device
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s(COMMAND_LIMIT_S))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate(timeout=_START_LIMIT_S)
        return Outcome(process.returncode, output)

    def program(self, name: str, line: str) -> None:
        """Puts a program of one shell line where commands look first."""
        path = self._programs / name
        path.write_text(line if line.startswith("#!") else f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
