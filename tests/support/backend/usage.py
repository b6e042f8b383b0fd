"""What a process holds, for tests that it does not grow."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support.limits import limit_s

if TYPE_CHECKING:
    from collections.abc import Iterable

_LIMIT_S = 5.0
_LOOK_S = 0.01


@dataclasses.dataclass(frozen=True)
class Usage:
    descriptors: int
    threads: int
    segments: int  # pieces of shared memory

    def within(self, most: Usage) -> bool:
        return all(a <= b for a, b in zip(*map(dataclasses.astuple, (self, most)), strict=True))


def usage() -> Usage:
    """Of this process, now."""
    segments = Path("/proc/self/maps").read_text().count("/memfd:")
    return Usage(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), segments)


def most_of(seen: Iterable[Usage]) -> Usage:
    """The most of each."""
    return Usage(*map(max, zip(*map(dataclasses.astuple, seen), strict=True)))


def check_usage(most: Usage) -> None:
    """Raises AssertionError if this process goes on holding more of something than `most`.

    For a moment it may: a thread that has been joined is listed until the kernel has removed it,
    and a job that runs opens its status file once a second.
    """
    deadline = time.monotonic() + limit_s(_LIMIT_S)
    while not (now := usage()).within(most):
        if time.monotonic() > deadline:
            raise AssertionError(f"{now}, which was {most} before: {open_files()}")
        time.sleep(_LOOK_S)


def open_files() -> list[str]:
    """What the open descriptors refer to."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(entry.readlink()))
        except FileNotFoundError:  # closed meanwhile, as that of this list
            continue
    return names
