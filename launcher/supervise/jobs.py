"""The job of a verb: the folder that the user names, the running job, or the last run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.supervision.job_files import JobFolder, running_jobs

if TYPE_CHECKING:
    import argparse

RUNS = Path("runs")  # where `topoopt run` makes its folders
METRICS = "metrics.jsonl"


def add_run(options: argparse.ArgumentParser, text: str) -> None:
    options.add_argument("run", type=Path, nargs="?", metavar="RUN_DIR", help=text)


def running() -> list[Path]:
    """Folders of this user's running jobs, the latest first; raises InputError."""
    try:
        return running_jobs()
    except OSError as error:
        raise InputError(f"RUN_DIR is missing, and running jobs cannot be found: {error}") from None


def recorded(parent: Path) -> list[Path]:
    """The run folders in `parent`, the latest last."""
    begun = [(path.stat().st_mtime_ns, path.parent) for path in parent.glob(f"*/{METRICS}")]
    return [folder for _, folder in sorted(begun)]


def last_run() -> Path:
    """The latest folder of ./runs; raises InputError without one."""
    runs = recorded(RUNS)
    if not runs:
        raise InputError(f"RUN_DIR is missing, and ./{RUNS} has no run; name a folder")
    return runs[-1]


def find(run: Path | None, *, or_last_run: bool = False) -> JobFolder:
    """The folder `run`, else the running job, else the last run if `or_last_run`.

    Raises InputError if there is none.
    """
    if run is not None:
        if not run.is_dir():
            raise InputError(f"{run}: there is no such folder; name that of a run")
        return JobFolder(run)
    jobs = running()
    if jobs:
        return JobFolder(jobs[0])
    if or_last_run:
        return JobFolder(last_run())
    raise InputError(
        "RUN_DIR is missing, and no job of yours runs on this machine; name a folder "
        "(`topoopt runs` lists those that have ended)"
    )
