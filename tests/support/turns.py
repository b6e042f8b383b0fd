"""Lets test processes that run side by side (pytest-xdist) leave the machine to one test alone.

A test marked `alone` holds the machine's lock by itself, every other test shares it. A test that
waits for it alone holds the gate, so that no test that begins later overtakes it.
"""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER = Path(__file__).parents[2] / "build"


@contextmanager
def turn(run: str, *, alone: bool) -> Iterator[None]:
    """Holds the lock of the test run `run` (its unique id) while the body runs."""
    _FOLDER.mkdir(exist_ok=True)
    with _file(run, "gate").open("w") as gate, _file(run, "machine").open("w") as machine:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def forget(run: str) -> None:
    """Removes the lock's files, after the run."""
    for name in ("gate", "machine"):
        _file(run, name).unlink(missing_ok=True)


def _file(run: str, name: str) -> Path:
    return _FOLDER / f"tests-{run}.{name}"
