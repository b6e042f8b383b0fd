"""Runs a script as its users would: under torchrun, under `topoopt run`, or plainly."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from support.commands import shared_server
from support.limits import limit_s

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_S = 120  # of one job; most of it is imports, on every rank
ATTEMPTS = 3
GLOO_ABORTED = ("terminate called without an active exception", "Resource deadlock avoided")
END_S = 20  # for a job that was asked to end


def torchrun(ranks: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def topoopt_run(servers: int, degree: int) -> list[str]:
    return ["topoopt", "run", "--servers", str(servers), "--degree", str(degree)]


def run(folder: Path, *command: str, **environment: str) -> str:
    """Runs `python COMMAND` or `topoopt ...` in `folder`; returns what it wrote.

    Fails the test if it failed. The imports of `topoopt` are those of a server of this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program, *arguments = command
    start = (
        shared_server().command("topoopt") if program == "topoopt" else (sys.executable, program)
    )
    process = subprocess.Popen(
        [*start, *arguments],
        cwd=folder,
        env=_environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit_s(LIMIT_S))
    except subprocess.TimeoutExpired:
        _end(process)
        raise
    assert process.returncode == 0, printed[-6000:]
    return printed


def losses(folder: Path, *command: str, **environment: str) -> tuple[list[float], str]:
    """The losses.json of one of our scripts, and the output of its run."""
    printed = run(folder, *command, "--output-dir", str(folder), **environment)
    values: list[float] = json.loads((folder / "losses.json").read_text())
    return values, printed


def link_differences(printed: str) -> list[float]:
    """Measured bytes of each link against the prediction, in percent."""
    links = re.findall(r"server \d+ port \d+ -> server \d+ port \d+ .*([+-][\d.]+)%", printed)
    assert links, printed
    return [float(percent) for percent in links]


def gloo_losses(folder: Path, *command: str, **environment: str) -> list[float]:
    """The losses.json of a job over gloo.

    On a loaded machine gloo often aborts when its groups end, or joins a thread with itself. The
    losses that the job has written by then are complete, since all ranks have taken all steps. If
    there are none yet, the job runs again.
    """
    for attempt in range(ATTEMPTS):
        written = folder / str(attempt) / "losses.json"
        try:
            return losses(written.parent, *command, **environment)[0]
        except AssertionError as error:
            if not any(words in str(error) for words in GLOO_ABORTED):
                raise
            with contextlib.suppress(OSError, json.JSONDecodeError):
                values: list[float] = json.loads(written.read_text())
                return values
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _end(process: subprocess.Popen[str]) -> None:
    """Launchers end their ranks, which are in sessions of their own, when they are asked to end."""
    process.terminate()
    try:
        process.communicate(timeout=limit_s(END_S))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=limit_s(END_S))


def _environment() -> dict[str, str]:
    """Nothing is downloaded or reported, there is no GPU, and no rank takes more than one core."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPOOPT_")}
    return kept | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "true",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",  # no cluster that runs here, or that has left its address
    }
