"""Open MPI beside the process groups: builds and starts mpi_collectives.c, and talks to its ranks.

The MPI ranks live as long as the benchmark and wait for commands in pipes, so that rounds of MPI
alternate with rounds of the others without a start-up in between, and without burning CPU.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.processes.rank_main import die_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.tools.bench.operations import Case

DATATYPES = frozenset({"int8", "uint8", "int32", "int64", "float", "double"})
REDUCE_OPS = frozenset({"sum", "prod", "min", "max"})
_SOURCE = Path(__file__).with_name("mpi_collectives.c")
_ANSWER_LIMIT_S = 600.0


class MpiError(RuntimeError):
    """Open MPI is missing, or failed; the message says which."""


class MpiClient:
    """The connection of rank 0 of the benchmark with the MPI ranks: the pipes in `folder`."""

    def __init__(self, folder: str, ranks: int) -> None:
        # Open for both, so that neither end waits for the other.
        self._commands = [
            os.open(f"{folder}/commands-{rank}", os.O_RDWR | os.O_CLOEXEC) for rank in range(ranks)
        ]
        self._answers = os.open(f"{folder}/answers", os.O_RDWR | os.O_CLOEXEC)
        self._launcher = int(Path(folder, "launcher").read_text())

    def wrong(self, case: Case) -> int:
        """Elements that are wrong after one call on fresh buffers, on all ranks together."""
        return int(self._ask("check", case, 0, 1))

    def seconds(self, case: Case, warm_up: int, iterations: int, *, renews: bool = False) -> float:
        """Seconds of one call, on the slowest rank; `renews`: as GroupPeer has it."""
        return self._ask("renew" if renews else "time", case, warm_up, iterations)

    def _ask(self, verb: str, case: Case, warm_up: int, iterations: int) -> float:
        line = (
            f"{verb} {case.operation} {case.datatype} {case.reduce_op} {case.root} {case.target} "
            f"{case.elements} {warm_up} {iterations}\n"
        ).encode()
        for pipe in self._commands:
            os.write(pipe, line)
        deadline = time.monotonic() + _ANSWER_LIMIT_S
        answer = b""
        while not answer.endswith(b"\n"):
            if select.select([self._answers], [], [], 1.0)[0]:
                answer += os.read(self._answers, 64)
            elif not self._launcher_lives():
                raise MpiError("mpirun has ended")
            elif time.monotonic() > deadline:
                raise MpiError(f"no answer to {verb} {case.operation} in {_ANSWER_LIMIT_S:g} s")
        return float(answer)

    def _launcher_lives(self) -> bool:
        try:
            state = Path(f"/proc/{self._launcher}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z"


@contextlib.contextmanager
def mpi_ranks(ranks: int, options: list[str], processors: Sequence[int] = ()) -> Iterator[str]:
    """Starts the MPI ranks with `mpirun options`; yields the folder for MpiClient.

    Of some `processors`, rank i runs on number i of them, and begins again where there are fewer.

    Raises MpiError if Open MPI is not installed.
    """
    for tool in ("mpicc", "mpirun"):
        if shutil.which(tool) is None:
            raise MpiError(f"{tool} not found; on Debian install openmpi-bin and libopenmpi-dev")
    with tempfile.TemporaryDirectory(prefix="topoopt-mpi-") as folder:
        program = _build(folder)
        for name in [f"commands-{rank}" for rank in range(ranks)] + ["answers"]:
            os.mkfifo(f"{folder}/{name}")
        log = Path(folder, "mpirun.log")
        parent = os.getpid()
        pinned = ["--bind-to", "none"] if processors else []
        command = ["mpirun", "-n", str(ranks), *options, *pinned, program, folder]
        command += map(str, processors)
        # Root runs it in its own namespaces and containers, which is what root is for here.
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        with log.open("wb") as output:
            launcher = subprocess.Popen(
                command,
                env=os.environ | allowed,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: die_with(parent),
            )
        Path(folder, "launcher").write_text(str(launcher.pid))
        try:
            yield folder
        finally:
            if launcher.poll() is not None and launcher.returncode != 0:
                print(f"# mpirun ended with {launcher.returncode}: {log.read_text()[-600:]}")
            launcher.terminate()
            try:
                launcher.wait(10)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()


def _build(folder: str) -> str:
    program = f"{folder}/mpi_collectives"
    built = subprocess.run(
        ["mpicc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", program, str(_SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if built.returncode != 0:
        raise MpiError(f"mpicc: {built.stderr.strip()}")
    return program
