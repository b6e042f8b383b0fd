"""Paths of a job's public files, and the list of this user's running jobs on this machine."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch_topoopt.processes.scratch import process_start

_DUMPS = "flight_recorder"
_ATTEMPT = "attempt"
_RUNNING = "running"  # symbolic links to job folders, by process number


@dataclass(frozen=True)
class JobFolder:
    """The folder of a run, or of a job that `topoopt run` did not start."""

    path: Path

    @property
    def statuses(self) -> Path:
        return self.path / "status"

    def status(self, rank: int) -> Path:
        """Written once a second while the rank runs."""
        return self.statuses / f"rank-{rank}"

    def pace(self, rank: int) -> Path:
        """Written about once a second while the rank trains."""
        return self.statuses / f"pace-{rank}.json"

    @property
    def request(self) -> Path:
        """The file whose creation or change makes all ranks dump their flight recorders."""
        return self.path / "dump-request"

    def ask_for_dumps(self, why: str) -> None:
        """Makes all ranks dump their flight recorders within about a second. Raises OSError."""
        partial = self.request.with_name(f".{os.getpid()}-{self.request.name}")
        partial.write_text(why + "\n", encoding="utf-8")
        partial.replace(self.request)

    @property
    def arrivals(self) -> Path:
        """The folder of a job that may grow, with a file for each emulated server that comes."""
        return self.path / "arrivals"

    def arrive(self) -> None:
        """Lets one more emulated server come to the job. Raises OSError."""
        handle, _ = tempfile.mkstemp(dir=self.arrivals)
        os.close(handle)

    def dumps(self, attempt: int) -> Path:
        """The folder of dumps of one attempt: the number of restarts before it."""
        return self.path / _DUMPS / f"{_ATTEMPT}{attempt}"

    def dump(self, attempt: int, rank: int) -> Path:
        """A dump; PyTorch's analyzer finds the rank in its name, too."""
        return self.dumps(attempt) / f"rank_{rank}"

    def last_dumps(self) -> Path | None:
        """The folder of the last attempt that has dumps."""
        attempts = {
            int(number): folder
            for folder in (self.path / _DUMPS).glob(f"{_ATTEMPT}*")
            if (number := folder.name.removeprefix(_ATTEMPT)).isdecimal() and any(folder.iterdir())
        }
        return attempts[max(attempts)] if attempts else None

    def tidy(self) -> None:
        """Removes files that only running jobs need; call it when a rank has ended."""
        with contextlib.suppress(OSError):  # another rank is still there
            self.statuses.rmdir()
            self.request.unlink(missing_ok=True)
        if self.path.parent.name == _JOBS:
            with contextlib.suppress(OSError):  # there are dumps
                self.path.rmdir()


_JOBS = "jobs"


def _temporary_folder() -> str:
    """As tempfile.gettempdir(), but without its test file, which each starting rank would write."""
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for folder in (tempfile.tempdir, *named, "/tmp", "/var/tmp"):
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return os.path.abspath(folder)
    return tempfile.gettempdir()


def _runtime_folder() -> Path:
    """A folder of this user alone, made if need be; raises OSError if another owns it."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and os.path.isdir(given):
        folder = Path(given) / "torch_topoopt"
    else:
        folder = Path(_temporary_folder(), f"torch_topoopt-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder}: others own it, or may write there")
    return folder


def folder_without_run(name: str) -> Path:
    """The folder of a job that `topoopt run` did not start. Raises OSError."""
    folder = _runtime_folder() / _JOBS / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _own_link() -> Path:
    return _runtime_folder() / _RUNNING / f"{os.getpid()}-{process_start(os.getpid())}"


def note_running(job: Path) -> None:
    """Registers this process with the job in `folder` until forget_running(). Raises OSError."""
    link = _own_link()
    link.parent.mkdir(mode=0o700, exist_ok=True)
    for other in link.parent.iterdir():
        if not _runs(other):
            other.unlink(missing_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(job)


def forget_running() -> None:
    with contextlib.suppress(OSError):
        _own_link().unlink(missing_ok=True)


def _runs(link: Path) -> bool:
    pid, _, started = link.name.partition("-")
    return pid.isdecimal() and started == str(process_start(int(pid)))


def running_jobs() -> list[Path]:
    """The folders of this user's running jobs on this machine, the latest first."""
    folder = _runtime_folder() / _RUNNING
    if not folder.is_dir():
        return []
    links = [link for link in folder.iterdir() if _runs(link)]
    links.sort(key=lambda link: link.lstat().st_mtime_ns, reverse=True)
    return list(dict.fromkeys(link.readlink() for link in links))
