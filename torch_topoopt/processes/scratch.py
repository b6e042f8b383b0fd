"""Temporary folders that are removed after the end of their process, even after SIGKILL.

A killed process cannot remove its folder, so the next process does: a folder's name identifies its
process, and the kernel knows whether that still runs.
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

    First removes the abandoned folders of this user. Raises OSError if the folder cannot be made.
    """
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=_name(os.getpid())))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Removes the scratch folders of this user's ended processes on this machine."""
    machine = f"{_PREFIX}{_machine()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{machine}*"):
        pid, started, *rest = (*folder.name.removeprefix(machine).split("-"), "")
        if not (pid.isdecimal() and started.isdecimal() and rest):
            continue
        with contextlib.suppress(OSError):  # another process may remove it first
            found = folder.lstat()
            own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if own and process_start(int(pid)) != int(started):
                shutil.rmtree(folder, ignore_errors=True)


def _name(pid: int) -> str:
    return f"{_PREFIX}{_machine()}-{pid}-{process_start(pid)}-"


def _machine() -> str:
    """Identifies this boot and this PID namespace (a container has its own)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"


def process_start(process: int) -> int:
    """The start of a process, in clock ticks after boot; -1 if there is no such process.

    It tells apart processes that reuse a number.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    return int(text.rpartition(")")[2].split()[_STARTED])
