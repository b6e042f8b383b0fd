"""The job of a verb: the folder that the user names, or the running job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.supervision.job_files import JobFolder, running_jobs

if TYPE_CHECKING:
    import argparse


def add_run(options: argparse.ArgumentParser, text: str) -> None:
    options.add_argument("run", type=Path, nargs="?", metavar="RUN_DIR", help=text)


def find(run: Path | None) -> JobFolder:
    """Raises InputError without such a folder, or a running job."""
    if run is not None:
        if not run.is_dir():
            raise InputError(f"{run}: there is no such folder; name that of a run")
        return JobFolder(run)
    try:
        running = running_jobs()
    except OSError as error:
        raise InputError(f"RUN_DIR is missing, and running jobs cannot be found: {error}") from None
    if not running:
        raise InputError(
            "RUN_DIR is missing, and no job of yours runs on this machine; name a folder"
        )
    return JobFolder(running[0])
