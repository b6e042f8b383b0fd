"""The folder of one run: made when the run starts; only complete files remain at the end."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import link_bytes, requested_groups

DOCUMENTS = ("opgraph.json", "trace.json", "plan.json")
_KEPT = ("opgraph.json", "plan.json", "wiring.json", "metrics.jsonl")
_PROBE_BYTES = 4096  # a block: fewer bytes may fit on a full disk


class RunFolder:
    """`runs/<time>` or the folder that the user names, which must be new or empty.

    `suffix` distinguishes the folders of several hosts on one file system.
    """

    def __init__(self, path: Path | None, started: float, *, suffix: str = "") -> None:
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.localtime(started)) + suffix
        self.path = path or _free(Path("runs"), stamp)
        self._made: list[Path] = []
        self._kept: dict[str, bytes] = {}
        try:
            missing = [p for p in (self.path, *self.path.parents) if not p.exists()]
            for folder in reversed(missing):
                folder.mkdir(exist_ok=True)
                self._made.append(folder)
            if any(self.path.iterdir()):
                raise InputError(f"run-dir: {self.path} is not empty; name a new folder")
        except OSError as error:
            raise InputError(f"run-dir: {self.path}: {error.strerror}") from None

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def has_plan(self) -> bool:
        """Whether there is enough for a report."""
        return (self / "plan.json").is_file()

    def keep(self) -> None:
        """Remembers the current documents, for `restore`."""
        self._kept = {name: (self / name).read_bytes() for name in _KEPT if (self / name).is_file()}

    def restore(self) -> bool:
        """Restores deleted documents of `keep`, with the folder; returns whether any was missing.

        Raises OSError. The folder alone proves nothing: ranks recreate it for their status.
        """
        missing = [name for name in self._kept if not (self / name).exists()]
        if missing:
            self.path.mkdir(parents=True, exist_ok=True)
        for name in missing:
            (self / name).write_bytes(self._kept[name])
        return bool(missing)

    def probe(self) -> None:
        """Raises OSError if the folder is not writable."""
        path = self / f".{os.getpid()}-probe"
        try:
            path.write_bytes(bytes(_PROBE_BYTES))
        finally:
            path.unlink(missing_ok=True)

    def discard_unfinished(self) -> bool:
        """After a stopped run: keeps complete files; True if anything is worth keeping.

        Without an OpGraph, a trace or a Plan there is nothing, and the folder is removed.
        """
        link_bytes.remove(self.path)
        requested_groups.remove(self.path)
        if any((self.path / name).is_file() for name in DOCUMENTS):
            return True
        (self.path / "metrics.jsonl").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: it contains another run's folder
            for folder in reversed(self._made):
                folder.rmdir()
        return False


def _free(parent: Path, stamp: str) -> Path:
    """`parent/stamp`, with a number after it if another run began in the same second."""
    path, number = parent / stamp, 1
    while path.exists():
        number += 1
        path = parent / f"{stamp}-{number}"
    return path
