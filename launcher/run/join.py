"""`topoopt join`: one more emulated server comes to a running job of --nnodes MIN:MAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.supervise import jobs
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.supervision.statuses import read_statuses

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

_DESCRIPTION = """\
Adds one emulated server to a job of `topoopt run --nnodes MIN:MAX`: one that was lost, or that was
not there at the start (--servers fewer than MAX). The launcher plans for the larger number of
servers, stops the ranks, wires the servers and starts the ranks on all of them; the script
continues from its own checkpoint. Ranks train for at least --grow-interval seconds before they are
stopped. The launcher prints the result.

A machine of a cluster file joins with `topoopt run --cluster`, the command of all hosts.

RUN_DIR is the folder of the run (default: your job on this machine that started last)."""

_EXAMPLES = """\
  topoopt run --nnodes 2:4 --servers 3 train.py    # in one terminal
  topoopt join                                     # in another one: there are 4 servers
  topoopt join runs/20261129-181500                # a job among several"""


@dataclass(frozen=True)
class Joined:
    """The result of `topoopt join`: the job that will take the server in."""

    run_dir: Path


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("join", _DESCRIPTION, _EXAMPLES)
    jobs.add_run(options, "folder of the run (default: the job that started last)")
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    job = jobs.find(arguments.run)
    try:
        running = any(status.alive for status in read_statuses(job).values())
    except (DocumentError, OSError) as error:
        raise InputError(f"{job.path}: {error}") from None
    if not job.arrivals.is_dir():
        raise InputError(
            f"{job.path}: this job takes no emulated server in; start one with "
            "`topoopt run --nnodes MIN:MAX`"
        )
    if not running:
        raise InputError(f"{job.path}: no rank of this job runs now")
    try:
        job.arrive()
    except OSError as error:
        raise InputError(f"{job.path}: {error.strerror}") from None
    if arguments.json:
        console.print_json(Joined(job.path))
    else:
        console.Terminal().line(f"a server has come to {job.path}")
    return OK
