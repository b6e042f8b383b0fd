"""Temporary folders that go with the process that made them, however it ends.

A process that is killed with SIGKILL cannot remove its folder, so the next one does: the name of a
folder says which process it belongs to, and a process that has ended is known by the kernel.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "topoopt-scratch-"
_STARTED = 19  # field of /proc/PID/stat, counted from the one after the program's name


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of this process alone (mode 0700), removed at the end.

    Removes before those of processes of this user that have ended without doing so themselves.
    Raises OSError where none can be made.
    """
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=_name(os.getpid())))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Removes the scratch folders of this user's processes of this machine that have ended."""
    machine = f"{_PREFIX}{_machine()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{machine}*"):
        pid, started, *rest = (*folder.name.removeprefix(machine).split("-"), "")
        if not (pid.isdecimal() and started.isdecimal() and rest):
            continue
        with contextlib.suppress(OSError):  # another process removes it at this moment
            found = folder.lstat()
            own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if own and process_start(int(pid)) != int(started):
                shutil.rmtree(folder, ignore_errors=True)


def _name(pid: int) -> str:
    return f"{_PREFIX}{_machine()}-{pid}-{process_start(pid)}-"


def _machine() -> str:
    """This boot of this kernel, and the processes that are numbered together (a container's)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"


def process_start(process: int) -> int:
    """When a process started, in clock ticks after boot; -1 if there is none.

    A later process that is given the same number has another.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    return int(text.rpartition(")")[2].split()[_STARTED])
