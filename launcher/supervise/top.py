"""`topoopt top`: a running job, redrawn every second on the terminal or on a web page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options, signals
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.supervise import jobs, live_page

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.launcher.supervise.live_page import LivePage
    from torch_topoopt.supervision.running_job import LiveJob

_DESCRIPTION = """\
Shows the progress of a running job until it ends or Ctrl-C: the time of a step with the predicted
one, the loss, and the rate of every link with the planned one, as a bar. Links that are down or
degraded come first; many links that are alike share a line. --serve shows the same on a web page of
this machine, and prints its address.

The loss is the number on the CPU that rank 0 calls backward() of, or what the script gives
torch_topoopt.log(loss=...). RUN_DIR is the folder of the run (default: your job on this machine
that started last). `topoopt run --watch` shows the same of the job that it starts; `topoopt status`
has the ranks one by one."""

_EXAMPLES = """\
  topoopt top
  topoopt top runs/2026-01-31T12-00-00 --server 3
  topoopt top --serve --serve-port 8080
  topoopt top --once"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("top", _DESCRIPTION, _EXAMPLES)
    jobs.add_run(options, "folder of the run (default: the job that started last)")
    options.add_argument(
        "--server", type=int, metavar="N", help="only the links of server N, one by one"
    )
    options.add_argument("--once", action="store_true", help="print once, and do not wait for more")
    live_page.add_options(options)
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    live_page.check(arguments)
    from torch_topoopt.launcher.supervise import top_view
    from torch_topoopt.supervision.running_job import LiveJob

    job = LiveJob(jobs.find(arguments.run))
    job.read()
    if not job.ranks:
        raise InputError(
            f"{job.folder.path}: this job is not running; use `topoopt report` for its results"
        )
    if arguments.server is not None and not 0 <= arguments.server < job.servers:
        raise InputError(f"server: {arguments.server} is not one of 0..{job.servers - 1}")
    if arguments.json:
        console.print_json(job)
        return OK
    terminal = console.Terminal()
    with live_page.served(arguments) as page:
        if page is not None:
            terminal.line(f"{page.url} shows this job; Ctrl-C ends the page, not the job")
        if page is None and (arguments.once or not terminal.moves):
            terminal.show(top_view.job_view(job, arguments.server))
            return OK
        _follow(job, terminal, page, arguments.server)
    terminal.line(f"{job.folder.path}: the job has ended")
    return OK


def _follow(
    job: LiveJob, terminal: console.Terminal, page: LivePage | None, server: int | None
) -> None:
    """Until the job ends."""
    from torch_topoopt.launcher.supervise import top_view

    with terminal.screen() as show:
        while job.ranks:
            signals.check()
            if terminal.moves:
                show([top_view.job_view(job, server)])
            if page is not None:
                page.publish(job)
            time.sleep(1.0)
            job.read()
