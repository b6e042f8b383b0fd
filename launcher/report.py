"""`topoopt report`: (re)writes the page of a run or a plan, of two side by side, or figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.supervise import jobs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_DESCRIPTION = """\
Writes report.html into the folder of a run, or PLAN.html beside a plan that has not been run: the
network with its rings, predicted and measured traffic, a timeline of the iteration, and answers:
why the slowest link is slow, what one more port would bring, which operators are split and why,
what happens if a cable is pulled. The page is one file, needs no network, and opens from disk."""

_EXAMPLES = """\
  topoopt report
  topoopt report runs/2026-01-31T12-00-00
  topoopt report plan.json
  topoopt report plan.json --plots figures    # SVG and PNG files for a paper
  topoopt report --compare four-ports.json six-ports.json -o ports.html"""


@dataclass(frozen=True)
class WrittenReport:
    """The result of `topoopt report`: the page, and the folder of the plots."""

    OMIT_IF_NONE: ClassVar = ("plots",)

    report: Path
    plots: str | None


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("report", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        nargs="?",
        help="a folder that `topoopt run` made, or a plan.json (default: the latest of ./runs)",
    )
    options.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="one page of two runs or plans, side by side",
    )
    options.add_argument(
        "-o",
        "--output",
        type=shared_options.output_file,
        metavar="FILE",
        help="with --compare: the page (default: compare.html)",
    )
    options.add_argument(
        "--plots",
        type=shared_options.output_folder,
        metavar="DIR",
        help="write the figures into DIR too, each as SVG and PNG",
    )
    options.add_argument(
        "--no-analysis",
        dest="analysis",
        action="store_false",
        help="leave out what has to be simulated for the page (a second; about a minute for 128 "
        "servers): timeline, what-if, architectures, pulled cables",
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    options = make_parser()
    arguments = options.parse_args(argv)
    if arguments.run_dir is not None and arguments.compare is not None:
        options.error("give a run folder or a plan, or --compare and two of them")
    if arguments.compare is None and arguments.output is not None:
        options.error("-o is for --compare; the page of a run or a plan is written next to it")
    if arguments.compare is not None and arguments.plots is not None:
        options.error("--plots draws one run or plan; leave out --compare")
    terminal = console.Terminal(json_output=arguments.json)
    with terminal.progress("writing the report") as progress:

        def on_step(step: str) -> None:
            progress(None, step)

        on_step("")
        if arguments.compare is not None:
            path = _compare(arguments, on_step)
        else:
            path = write(
                arguments.run_dir or jobs.last_run(),
                analysed=arguments.analysis,
                plots=arguments.plots,
                on_step=on_step,
            )
    if arguments.json:
        console.print_json(WrittenReport(path, arguments.plots))
        return OK
    terminal.line(f"report: {path}")
    if arguments.plots is not None:
        terminal.line(f"figures: {arguments.plots}")
    return OK


def write(
    run_dir: str | Path,
    *,
    analysed: bool = True,
    plots: str | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> Path:
    """Writes the page of a run folder or of a plan; raises InputError or DocumentError for anything
    else."""
    from torch_topoopt.report import write_plan_report, write_report

    _check(run_dir)
    made = write_report if Path(run_dir).is_dir() else write_plan_report
    try:
        return made(run_dir, analysed=analysed, plots=plots, on_step=on_step)
    except OSError as error:
        raise _unwritable(error, run_dir) from None


def _compare(arguments: argparse.Namespace, on_step: Callable[[str], None]) -> Path:
    from torch_topoopt.report import write_comparison

    for name in arguments.compare:
        _check(name)
    target = arguments.output or "compare.html"
    try:
        first, second = arguments.compare
        return write_comparison(first, second, target, analysed=arguments.analysis, on_step=on_step)
    except OSError as error:
        raise _unwritable(error, target) from None


def _check(run_dir: str | Path) -> None:
    if not Path(run_dir).exists():
        raise InputError(
            f"{run_dir}: no such folder or plan; give a folder that `topoopt run` made, or a "
            "plan.json"
        )


def _unwritable(error: OSError, where: str | Path) -> InputError:
    return InputError(f"{error.filename or where}: {error.strerror}")
