"""`topoopt runs`: the runs of a folder, the latest last."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.fitted_table import FittedTable
from torch_topoopt.launcher.supervise import jobs
from torch_topoopt.plan.units import format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.report.run_folder import Metrics

_DESCRIPTION = """\
Lists the runs of a folder, the latest last: when each began, what was trained on how many servers,
its state, and the time of an iteration. The state is running, done, failed with an exit code,
stopped (by Ctrl-C or SIGTERM), or unfinished: it plans, was killed, or its ranks run elsewhere.

`report`, `inspect` and `timeline` without a folder take the latest of ./runs."""

_EXAMPLES = """\
  topoopt runs
  topoopt runs /shared/runs
  topoopt runs --json"""

_STOPPED = (130, 143)


@dataclass(frozen=True)
class RecordedRun:
    """One run: `began` is ISO 8601, `iteration_s` the mean seconds of an iteration, or None."""

    folder: Path
    began: str
    command: tuple[str, ...]
    servers: int
    state: str
    iteration_s: float | None


@dataclass(frozen=True)
class RecordedRuns:
    """The result of `topoopt runs`."""

    runs: list[RecordedRun]


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("runs", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=jobs.RUNS,
        metavar="DIR",
        help="folder that contains the folders of runs (default: runs)",
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if not arguments.folder.is_dir():
        raise InputError(
            f"{arguments.folder}: there is no such folder; `topoopt run` makes runs/ here"
        )
    running = {folder.resolve() for folder in jobs.running()}
    runs = [_recorded(folder, running) for folder in jobs.recorded(arguments.folder)]
    if arguments.json:
        console.print_json(RecordedRuns(runs))
        return OK
    terminal = console.Terminal()
    if not runs:
        terminal.line(f"{arguments.folder}: no run is recorded here")
        return OK
    rows = [
        (
            run.folder.name,
            " ".join(run.command[2:]),  # without "topoopt run"
            str(run.servers),
            run.state,
            "-" if run.iteration_s is None else format_seconds(run.iteration_s),
        )
        for run in runs
    ]
    terminal.show(FittedTable(f"Runs in {arguments.folder}", _COLUMNS, rows, left=("command",)))
    return OK


_COLUMNS = ("run", "command", "servers", "state", "iteration")


def _recorded(folder: Path, running: set[Path]) -> RecordedRun:
    from torch_topoopt.report.run_folder import parse_metrics

    path = folder / jobs.METRICS
    metrics = parse_metrics(path.read_bytes(), str(path))
    start = metrics.start
    return RecordedRun(
        folder,
        start.time if start else "",
        start.command if start else (),
        start.servers if start else 0,
        _state(metrics, is_running=folder.resolve() in running),
        _iteration_s(metrics),
    )


def _state(metrics: Metrics, *, is_running: bool) -> str:
    code = metrics.exit_code
    if code is None:
        return "running" if is_running else "unfinished"
    if code in _STOPPED:
        return "stopped"
    return f"failed ({code})" if code else "done"


def _iteration_s(metrics: Metrics) -> float | None:
    if metrics.iterations is not None:
        return metrics.iterations.seconds
    return metrics.steps[-1].step_s if metrics.steps else None
