"""Faults of whole runs: `topoopt run` of examples/checkpoint.py on a fabric of its own."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fault_injection.trials import ENDS, GOES_ON, HANGS, Trial
from torch_topoopt.fabric.netns import kernel as netns_kernel

if TYPE_CHECKING:
    import argparse
    import random
    from collections.abc import Callable

_ROOT = Path(__file__).resolve().parents[2]
_LAUNCHER = (sys.executable, "-m", "torch_topoopt.launcher.main")
_START_LIMIT_S = 180.0
_END_LIMIT_S = 120.0
_LEFT_S = 10.0
_MOST_WAIT_S = 0.5
_STEPS, _EVERY = 60, 10  # of the script, and between two checkpoints
_MARK = "TOPOOPT_FAULTS_MARK"
_LAST_STEP = re.compile(rf"step {_STEPS}  loss (\S+)")
_GOES_ON_AGAIN = re.compile(r"restart 1: step [1-9]")


class Run:
    """One run, from its start; a context, which leaves nothing of it."""

    def __init__(self, folder: Path, options: argparse.Namespace, *more: str) -> None:
        self.mark = uuid.uuid4().hex
        self.lines: list[tuple[float, str]] = []
        script = [str(_ROOT / "examples" / "checkpoint.py"), "--folder", str(folder / "saved")]
        script += ["--steps", str(_STEPS), "--every", str(_EVERY)]
        command = [
            *(*_LAUNCHER, "run", "--fabric", "netns", "--no-measure-steps", "--model", "none"),
            *("--servers", str(options.ranks), "--degree", str(options.degree)),
            *("--bandwidth", options.bandwidth, "--run-dir", str(folder / "run"), *more),
            *script,
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, _MARK: self.mark},
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._rest = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # it removes the fabric
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_LIMIT_S)
        self.process.kill()
        self.process.wait()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._selector.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if netns_kernel.of_fabric(self.fabric):
            self.take_down()

    @property
    def fabric(self) -> str:
        return f"run-{self.process.pid}"

    def wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether `condition` has become true; reads what the run prints meanwhile."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._selector.select(0.02)
            self._read()
        return True

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._out, 1 << 16)
            *lines, self._rest = (self._rest + data).split(b"\n")
            now = time.monotonic()
            self.lines += [(now, line.decode(errors="replace")) for line in lines]
            if not data:
                time.sleep(0.02)  # it has closed its output

    def find(self, pattern: str | re.Pattern[str], since: float = 0.0) -> tuple[float, str] | None:
        return next(
            ((at, line) for at, line in self.lines if at >= since and re.search(pattern, line)),
            None,
        )

    @property
    def has_saved(self) -> bool:
        """Whether there is a checkpoint."""
        return self.find(rf"^step {_EVERY} ") is not None

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def rank_of(self, server: int) -> int:
        """The process of the rank on this server."""
        (pid,) = netns_kernel.processes([f"topoopt-{self.fabric}-{server}"])
        return pid

    def left(self) -> list[int]:
        """Processes of the run; they carry its mark in their environment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def take_down(self) -> None:
        """As a user would."""
        subprocess.run(
            [*_LAUNCHER, "fabric", "down", self.fabric],
            capture_output=True,
            timeout=_END_LIMIT_S,
            check=False,
        )


@dataclass
class RunFault:
    """`act` does it to a run that has written a checkpoint. `notice` as in fault_list.Fault."""

    name: str
    act: Callable[[Run, int], None]
    arguments: Callable[[int], tuple[str, ...]] = lambda ranks: ()
    ends: bool = True
    notice: str = ""
    cleaned: bool = False  # by `topoopt fabric down`
    losses: set[str] = field(default_factory=set)

    def trial(self, options: argparse.Namespace, chance: random.Random, folder: Path) -> Trial:
        """One repetition; raises RuntimeError if the run does not start."""
        victim = chance.randrange(1, options.ranks)
        own = Path(tempfile.mkdtemp(dir=folder))
        with Run(own, options, *self.arguments(options.ranks)) as run:
            run.wait(lambda: run.has_saved or run.has_ended, _START_LIMIT_S)
            if run.has_ended or not run.has_saved:
                raise RuntimeError(f"the run did not start: {run.lines[-1:]}")
            run.wait(lambda: run.has_ended, chance.uniform(0, _MOST_WAIT_S))
            at = time.monotonic()
            self.act(run, victim)
            trial = self._ended(run, at) if self.ends else self._went_on(run, at, victim)
            deadline = time.monotonic() + _LEFT_S
            while (left := run.left()) and time.monotonic() < deadline:
                time.sleep(0.02)
            trial.processes = len(left)
            if self.cleaned:
                run.take_down()
            trial.namespaces = len(netns_kernel.of_fabric(run.fabric))
            return trial

    def _ended(self, run: Run, at: float) -> Trial:
        """The launcher and all ranks end."""
        trial = Trial(ENDS)
        if not run.wait(lambda: run.has_ended and not run.left(), _END_LIMIT_S):
            trial.outcome = HANGS
        trial.over_s = time.monotonic() - at
        run.wait(lambda: False, 0.1)
        if self.notice and (found := run.find(self.notice, at)):
            trial.detected_s, trial.said = found[0] - at, found[1]
        return trial

    def _went_on(self, run: Run, at: float, victim: int) -> Trial:
        """The job comes back from its checkpoint, and ends well."""
        trial = Trial(GOES_ON)
        if not run.wait(lambda: run.has_ended, _END_LIMIT_S):
            trial.outcome = HANGS
        run.wait(lambda: False, 0.1)
        if found := run.find(self.notice.replace("{victim}", str(victim)), at):
            trial.detected_s, trial.said = found[0] - at, found[1]
        if again := run.find(_GOES_ON_AGAIN, at):
            trial.over_s = again[0] - at
        elif trial.outcome == GOES_ON:
            trial.outcome = ENDS
            trial.detail = f"no restart: {run.lines[-1:]}"
        if run.process.returncode:
            trial.outcome = ENDS
            trial.detail = f"exit code {run.process.returncode}: {run.lines[-1:]}"
        if last := run.find(_LAST_STEP):
            self.losses.add(last[1].split()[-1])
            trial.wrong = len(self.losses) - 1
        return trial


def _kill_rank(run: Run, victim: int) -> None:
    os.kill(run.rank_of(victim), signal.SIGKILL)


def _interrupt(run: Run, victim: int) -> None:
    """As the terminal does."""
    os.killpg(run.process.pid, signal.SIGINT)


RUN_FAULTS = {
    fault.name: fault
    for fault in (
        RunFault(
            "run: rank killed, --max-restarts",
            _kill_rank,
            lambda ranks: ("--max-restarts", "1"),
            ends=False,
            notice=r"rank {victim} of \S*checkpoint.py was killed by SIGKILL",
        ),
        RunFault(
            "run: server lost, --nnodes MIN:MAX",
            _kill_rank,
            lambda ranks: ("--max-restarts", "1", "--nnodes", f"{ranks - 1}:{ranks}"),
            ends=False,
            notice=r"rank {victim} of \S*checkpoint.py was killed by SIGKILL",
        ),
        RunFault("run: rank killed", _kill_rank, notice="was killed by SIGKILL"),
        RunFault("run: Ctrl-C", _interrupt, notice="^topoopt: "),
        RunFault("run: launcher ends (SIGTERM)", lambda run, victim: run.process.terminate()),
        RunFault(
            "run: launcher killed (SIGKILL)",
            lambda run, victim: run.process.kill(),
            cleaned=True,
        ),
    )
}
