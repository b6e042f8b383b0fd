"""A run folder as a page that needs no network, and its figures as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.codec import write_text_atomically
from torch_topoopt.report.run_folder import read_plan, read_run
from torch_topoopt.report.sections import render_page
from torch_topoopt.report.summary import summarise

if TYPE_CHECKING:
    import os

__all__ = ["summary", "write_plan_report", "write_report"]


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Writes `report.html` into a run folder, whole or not at all, and returns its path.

    Reads `plan.json`, and `opgraph.json` and `metrics.jsonl` where they exist. Without the last it
    is the page of a plan, else the page says what is missing. The same files give the same bytes.
    Raises DocumentError (a ValueError) if `plan.json` is missing, or if a file is corrupt or
    belongs to another plan; OSError if the folder cannot be read or written.
    """
    target = Path(run_dir) / "report.html"
    write_text_atomically(target, render_page(read_run(Path(run_dir))))
    return target


def write_plan_report(plan: str | os.PathLike[str]) -> Path:
    """Writes the page of a plan that has not been run beside it, as NAME.html; returns its path.

    What it predicts, its network and its strategy. Raises as `write_report`.
    """
    target = Path(plan).with_suffix(".html")
    write_text_atomically(target, render_page(read_plan(Path(plan))))
    return target


def summary(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """The figures of the page as values that JSON can hold; raises like `write_report`.

    Times are in seconds, sizes in bytes, accuracies are fractions; None stands for what was not
    recorded. `traffic.basis` says what `measured_over_predicted` compares: bytes per "iteration",
    each link's "share" of all bytes, or nothing ("predicted": nothing was measured).
    """
    return summarise(read_run(Path(run_dir)))
