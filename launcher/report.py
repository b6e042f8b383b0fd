"""`topoopt report`: (re)writes the report page of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Writes report.html into the folder of a run: the network with its rings, predicted and measured
traffic, the search curve and the accuracy curve. Of a plan that has not been run, its predictions,
as PLAN.html beside it. The page needs no network."""

_EXAMPLES = """\
  topoopt report runs/2026-01-31T12-00-00
  topoopt report runs/2026-01-31T12-00-00 --json
  topoopt report plan.json"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("report", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        help="a folder that `topoopt run` made, or a plan.json",
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    terminal = console.Terminal(json_output=arguments.json)
    with terminal.progress("writing the report") as progress:
        progress(None, "")
        path = write(arguments.run_dir)
    if arguments.json:
        console.print_json({"report": str(path)})
    else:
        terminal.line(f"report: {path}")
    return OK


def write(run_dir: str | Path) -> Path:
    """Writes the page of a run folder or of a plan; raises InputError or DocumentError for what is
    neither."""
    from torch_topoopt.report import write_plan_report, write_report

    if not Path(run_dir).exists():
        raise InputError(
            f"{run_dir}: no such folder or plan; give a folder that `topoopt run` made, or a "
            "plan.json"
        )
    try:
        return write_report(run_dir) if Path(run_dir).is_dir() else write_plan_report(run_dir)
    except OSError as error:
        raise InputError(f"{error.filename or run_dir}: {error.strerror}") from None
