"""Runs the commands of one job and writes their exit codes, in a process; see `processes`.

    python -m torch_topoopt.tools.queue.supervisor FOLDER

If one command fails, the others are ended, because a job needs all of its servers. SIGTERM ends
all; remaining processes are killed after 10 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from torch_topoopt.plan.codec import write_text_atomically
from torch_topoopt.tools.queue.processes import ProcessIdentity, locked

_GRACE_S = 10.0
_NOT_STARTED = 127
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


def main(folder: Path) -> int:
    """Returns 0, also where another supervisor was first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # they wait until _supervise asks
    with locked(folder) as mine:
        if not mine or (folder / "process.json").exists():
            return 0
        identity = ProcessIdentity.of(os.getpid())
        assert identity is not None
        write_text_atomically(folder / "process.json", json.dumps(asdict(identity)) + "\n")
        codes = _supervise(folder, json.loads((folder / "commands.json").read_text("utf-8")))
        write_text_atomically(folder / "ended.json", json.dumps(codes) + "\n")
    return 0


def _supervise(folder: Path, commands: list[dict[str, object]]) -> dict[str, int]:
    running: dict[str, subprocess.Popen[bytes]] = {}
    codes: dict[str, int] = {}
    for command in commands:
        name = str(command["name"])
        try:
            running[name] = _start(folder, command)
        except OSError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            codes[name] = _NOT_STARTED
    kill_at: float | None = None
    while running:
        if any(codes.values()) and kill_at is None:
            kill_at = _end(running, signal.SIGTERM)
        if kill_at is not None and time.monotonic() >= kill_at:
            kill_at = _end(running, signal.SIGKILL)
        left = 60.0 if kill_at is None else max(0.0, kill_at - time.monotonic())
        arrived = signal.sigtimedwait(_SIGNALS, left)
        if arrived is not None and arrived.si_signo != signal.SIGCHLD and kill_at is None:
            kill_at = _end(running, signal.SIGTERM)
        for name, process in list(running.items()):
            if process.poll() is not None:
                codes[name] = running.pop(name).returncode
    return codes


def _start(folder: Path, command: dict[str, object]) -> subprocess.Popen[bytes]:
    argv = command["argv"]
    assert isinstance(argv, list)
    with open(folder / f"{command['name']}.log", "ab") as log:
        return subprocess.Popen(
            argv,
            cwd=str(command["folder"]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_unblock,
        )


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _end(running: dict[str, subprocess.Popen[bytes]], number: signal.Signals) -> float:
    """Sends a signal to each command's process group; returns the time to escalate."""
    for process in running.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    return time.monotonic() + _GRACE_S


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
