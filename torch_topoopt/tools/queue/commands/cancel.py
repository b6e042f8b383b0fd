"""`topoopt cluster cancel`: ends jobs, or takes them out of the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.tools.queue.commands import state as cluster_state

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.tools.queue.jobs import QueuedJob

_DESCRIPTION = """\
Ends jobs. One that waits for servers is out of the queue at once; one that has servers is ended by
the daemon: its processes get SIGTERM (and SIGKILL after 10 s), then its circuits are removed, then
its servers are the next job's. A job that is over already is an error, and then none is ended."""

_EXAMPLES = """\
  topoopt cluster cancel 3
  topoopt cluster cancel 3 4 --dry-run"""


@dataclass(frozen=True)
class CancelledJob:
    """A job, and its state now."""

    job: int
    state: str


@dataclass(frozen=True)
class CancelledJobs:
    """The result of `topoopt cluster cancel`."""

    jobs: list[CancelledJob]
    dry_run: bool


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("cluster cancel", _DESCRIPTION, _EXAMPLES)
    options.add_argument("jobs", type=int, nargs="+", metavar="JOB", help="its number")
    cluster_state.add_options(options)
    shared_options.add(options, "dry-run")
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    from torch_topoopt.tools.queue.jobs import CANCELLED, FINAL, QUEUED
    from torch_topoopt.tools.queue.service import daemon_pid
    from torch_topoopt.tools.queue.store import Store

    store = Store(cluster_state.find(arguments))
    jobs = [store.job(number) for number in dict.fromkeys(arguments.jobs)]
    for job in jobs:
        if job.state in FINAL:
            raise InputError(f"job: {job.title} is {job.state} already")
    terminal = console.Terminal(json_output=arguments.json)
    states: dict[int, str] = {}
    for job in jobs:
        if arguments.dry_run:
            states[job.id] = job.state
            terminal.line(f"{job.title} would be {_fate(job, QUEUED)}")
        else:
            states[job.id] = store.cancel(job.id)
            over = states[job.id] == CANCELLED
            terminal.line(f"{job.title} is {'cancelled' if over else 'being ended'}")
    waiting = any(state not in FINAL for state in states.values())
    if waiting and not arguments.dry_run and daemon_pid(store.folder) is None:
        console.warning("no daemon runs; jobs that have servers end once it does")
    if arguments.json:
        ended = [CancelledJob(*item) for item in states.items()]
        console.print_json(CancelledJobs(ended, arguments.dry_run))
    return OK


def _fate(job: QueuedJob, queued: str) -> str:
    if job.state == queued:
        return "taken out of the queue"
    servers = ", ".join(job.layout.servers) if job.layout else ""
    return f"ended ({job.state} on {servers})"
