"""`topoopt timeline`: iterations as predicted and as measured, as a trace for Perfetto."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.supervise import jobs

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.supervision.dumps import Dump
    from torch_topoopt.supervision.recorded_timeline import RankTimeline

_DESCRIPTION = """\
Writes a trace that https://ui.perfetto.dev and chrome://tracing open: iterations as the plan
predicts them beside iterations of a run (of `topoopt run --timeline FIRST:END`), on one time axis.
Every server is a process; its threads are computation, collectives, messages and links. Arrows lead
from sends to receipts, counters show the rate of each link.

RUN_OR_PLAN is the folder of a run, or a plan file: then, and for a run that recorded no timeline,
the prediction alone."""

_EXAMPLES = """\
  topoopt timeline runs/2026-01-31T12-00-00
  topoopt timeline plan.json --predicted-iterations 3 -o predicted.json"""


@dataclass(frozen=True)
class WrittenTimeline:
    """The result of `topoopt timeline`."""

    trace: Path
    contents: str


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("timeline", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "run",
        type=Path,
        nargs="?",
        metavar="RUN_OR_PLAN",
        help="folder, or plan file (default: the latest of ./runs)",
    )
    options.add_argument(
        "--predicted-iterations",
        type=int,
        default=2,
        metavar="K",
        help="to show where none were measured (default: 2)",
    )
    options.add_argument(
        "-o",
        "--output",
        type=shared_options.output_file,
        metavar="FILE",
        help="the trace (default: timeline.json in the folder, or beside PLAN)",
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.predicted_iterations < 1:
        raise InputError(f"predicted-iterations: {arguments.predicted_iterations} is below 1")
    where: Path = arguments.run or jobs.last_run()
    if where.is_dir():
        path, said = write(where, arguments.output, arguments.predicted_iterations)
    else:
        from torch_topoopt.plan import Plan

        plan = documents.load(Plan, str(where))
        graph = None
        if plan.predicts_time:
            graph = documents.op_graph_of_plan(plan, str(where), None)
        given = arguments.output or where.with_suffix(".timeline.json")
        path, said = _write(Path(given), graph, plan, [], arguments.predicted_iterations)
    if arguments.json:
        console.print_json(WrittenTimeline(path, said))
    else:
        console.Terminal().line(f"{path}: {said}; open it in https://ui.perfetto.dev")
    return OK


def write(run: Path, trace: str | None = None, iterations: int = 2) -> tuple[Path, str]:
    """The timeline of a run folder: its path and contents. Raises InputError, DocumentError."""
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.supervision.recorded_timeline import read_timelines

    plan = documents.load(Plan, str(run / "plan.json"))
    graph_path = run / "opgraph.json"
    graph = documents.load(OpGraph, str(graph_path)) if graph_path.is_file() else None
    path = Path(trace) if trace else run / "timeline.json"
    return _write(path, graph, plan, read_timelines(run), iterations)


def _write(
    path: Path,
    graph: OpGraph | None,
    plan: Plan,
    recorded: list[tuple[RankTimeline, Dump | None]],
    iterations: int,
) -> tuple[Path, str]:
    from torch_topoopt.plan.codec import write_text_atomically
    from torch_topoopt.report.timeline import write_timeline

    text = io.StringIO()
    with input_errors():
        said = write_timeline(text, graph, plan, recorded, iterations)
    try:
        write_text_atomically(path, text.getvalue())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    return path, said
