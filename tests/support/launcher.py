"""Runs `topoopt` and finds whatever it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from support.commands import shared_server
from support.limits import limit_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

COMMAND = (sys.executable, "-m", "torch_topoopt.launcher.main")
LIMIT_S = 100.0  # of one command where nothing else runs


@dataclass
class Launcher:
    """Starts commands in `folder`; every process they start carries `mark` in its environment.

    Runs do not measure steps, which takes seconds, unless `measure_steps`.
    """

    folder: Path
    measure_steps: bool = False
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(
        self, *arguments: str | Path, command: tuple[str, ...] = COMMAND, **variables: str
    ) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PET_")}
        environment.pop("OMP_NUM_THREADS", None)
        if arguments[:1] == ("run",) and not self.measure_steps:
            arguments = ("run", "--no-measure-steps", *arguments[1:])
        return subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=self.folder,
            env={**environment, "TOPOOPT_TEST_MARK": self.mark, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, without the start-up of an interpreter (see forked)."""
        process = self.start(*arguments, command=forked(variables), **variables)
        try:
            out, err = process.communicate(timeout=limit_s(LIMIT_S))
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def leftovers(self) -> list[str]:
        """Command lines of processes that carry the mark and still run."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # it has ended since the listing
        return found

    def wait_for_its_end(self) -> None:
        """Fails the test if processes go on; what was killed may take a moment to end."""
        wait_for(lambda: not self.leftovers(), "the end of its processes")


def forked(variables: Iterable[str] = ()) -> tuple[str, ...]:
    """Runs `topoopt` as COMMAND does, in a fork of a process that has imported PyTorch.

    Signals do not reach it. Where the interpreter would read one of `variables`, it is COMMAND.
    """
    if any(name.startswith(("PYTHON", "LD_", "OMP_", "PATH")) for name in variables):
        return COMMAND
    return shared_server().command("module")


def wait_for(condition: Callable[[], bool], what: str, idle_s: float = 60.0) -> None:
    """Polls something that another process does; fails the test after `idle_s`, stretched."""
    seconds = limit_s(idle_s)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.02)
