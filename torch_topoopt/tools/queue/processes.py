"""Processes that outlive their parent: started once, found again, ended for good.

A job's folder has its commands (`commands.json`). A supervisor, in a session of its own, locks the
folder, writes its identity (`process.json`), runs the commands and writes their exit codes
(`ended.json`). Its identity is pid, start time and boot, because pids are reused.

The daemon may start a supervisor twice: the second one finds the lock or `process.json`, and exits.
All processes of a job carry its mark in their environment, so that leftovers of a dead supervisor
are found and killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.codec import write_text_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MARK = "TOPOOPT_JOB"


@dataclass(frozen=True)
class ProcessIdentity:
    """A process of this machine, for ever. `started` is in clock ticks since the boot."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """None if there is no such process, or only its exit code is left of it."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # state is the first of them
        if fields[0] in "ZX":
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return cls(pid, int(fields[19]), boot)

    @property
    def alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self


@dataclass(frozen=True)
class Command:
    """A command of the supervisor; its output goes to `<name>.log` in the job's folder."""

    name: str
    argv: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class Ended:
    """The exit codes of a job's commands by name; a negative one is a signal's."""

    exit_codes: dict[str, int]

    @property
    def exit_code(self) -> int:
        """0 if all are; else the first that is not, 128 + n for signal n, as a shell says it."""
        code = next((code for code in self.exit_codes.values() if code), 0)
        return code if code >= 0 else 128 - code


class LocalProcesses:
    """The supervisors on this machine, and those of their processes that run here."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []

    def start(
        self, folder: Path, commands: Sequence[Command], environment: Mapping[str, str], mark: str
    ) -> None:
        """Starts the supervisor of `folder`, unless it was started before. Raises OSError."""
        text = json.dumps([asdict(command) for command in commands], indent=1)
        write_text_atomically(folder / "commands.json", text + "\n")
        with open(folder / "supervisor.log", "ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "torch_topoopt.tools.queue.supervisor", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, MARK: mark},
                start_new_session=True,
            )
        self._children.append(child)

    def find(self, folder: Path) -> ProcessIdentity | None:
        """The supervisor that was started for `folder`, alive or not; None: not yet."""
        value = _read(folder / "process.json")
        return None if value is None or value.get("pid") is None else ProcessIdentity(**value)

    def ended(self, folder: Path) -> Ended | None:
        value = _read(folder / "ended.json")
        return None if value is None else Ended(value)

    def forbid(self, folder: Path) -> bool:
        """Prevents any start for `folder`; False if a supervisor has started."""
        with locked(folder) as mine:
            if not mine or (folder / "process.json").exists():
                return False
            write_text_atomically(folder / "process.json", '{"pid": null}\n')
            return True

    def forbidden(self, folder: Path) -> bool:
        """Whether `forbid` was called before."""
        value = _read(folder / "process.json")
        return value is not None and value.get("pid") is None

    def stop(self, identity: ProcessIdentity) -> None:
        """Requests a supervisor to end its commands (SIGTERM, and SIGKILL after a while)."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(identity.pid)
            try:
                if identity.alive:  # the handle is of this very process
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
            finally:
                os.close(handle)

    def kill_marked(self, mark: str) -> int:
        """Kills every process that carries `mark`; returns how many there were."""
        found = list(_marked(mark))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def reap(self) -> None:
        """Collects the exit codes of own children, so that none stays behind as a zombie."""
        self._children = [child for child in self._children if child.poll() is None]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether no other process has the lock of `folder`; holds it meanwhile."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def _read(path: Path) -> Any | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
