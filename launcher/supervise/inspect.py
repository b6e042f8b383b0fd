"""`topoopt inspect`: which rank is stuck or failed in a job that hangs or has failed."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.supervise import jobs

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.launcher.supervise.inspect_hosts import HostAnswer
    from torch_topoopt.supervision.culprits import Blame
    from torch_topoopt.supervision.dumps import Dump
    from torch_topoopt.supervision.job_files import JobFolder

_DESCRIPTION = """\
Merges what the ranks of a job remember of their last operations, and names the culprit: the rank
that has not called what others wait for, calls that do not match, a send that nobody receives,
ranks that wait for each other, a rank that is gone, a link that does not deliver. Every rank writes
such a dump when an operation fails or its time is up, and at SIGUSR1; the error's text says where.
The ranks of a job that still runs write new ones.

RUN_DIR is the folder of the run, or one with dumps in it (default: the job that runs, else the
latest of ./runs). PyTorch's own analyzer reads the same files:
torchfrtrace RUN_DIR/flight_recorder/attempt0.

With --cluster, the dumps of all hosts are collected over ssh (BatchMode: keys, no passwords), where
topoopt must be installed, too. RUN_DIR is then a path on the hosts: of a run, or of the folder with
the runs, whose latest is used."""

_EXAMPLES = """\
  topoopt inspect
  topoopt inspect runs/2026-01-31T12-00-00
  topoopt inspect --json
  topoopt inspect --cluster lab.yaml
  topoopt inspect --cluster lab.yaml /home/me/runs     # of a job that has ended
  kill -USR1 PID; topoopt inspect runs/2026-01-31T12-00-00    # PID of one rank: only its dump"""

_PAUSE_S = 0.05


@dataclass(frozen=True)
class Inspection:
    """The result of `topoopt inspect`: of one `folder`, or of `hosts`."""

    JSON_FIELDS: ClassVar = ("folder", "hosts", "culprits", "findings", "ranks")
    OMIT_IF_NONE: ClassVar = ("folder", "hosts")

    dumps: dict[int, Dump]
    findings: list[Blame]
    folder: Path | None = None
    hosts: list[HostAnswer] | None = None

    def culprits(self) -> tuple[int, ...]:
        return self.findings[0].ranks if self.findings else ()

    def ranks(self) -> list[Dump]:
        return list(self.dumps.values())


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("inspect", _DESCRIPTION, _EXAMPLES)
    jobs.add_run(
        options,
        "folder of the run, or of dumps (default: the job that runs, else the latest of ./runs)",
    )
    options.add_argument(
        "--wait",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="time limit for the dumps of a running job's ranks (seconds, default: 5)",
    )
    options.add_argument(
        "--cluster",
        metavar="FILE",
        help="cluster file of the hosts to collect from (default: only this host)",
    )
    options.add_argument("--dumps-of", type=int, help=argparse.SUPPRESS)  # print them, as a host
    shared_options.add(options, "ssh-command", "remote-command", "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if not 0 <= arguments.wait < float("inf"):
        raise InputError(f"wait: {arguments.wait:g} is no number of seconds from 0 on")
    terminal = console.Terminal(json_output=arguments.json or arguments.dumps_of is not None)
    if arguments.dumps_of is not None:
        return _print_dumps(terminal, arguments)
    found = _of_hosts(arguments) if arguments.cluster else _of_folder(terminal, arguments)
    if arguments.json:
        console.print_json(found)
    else:
        _show(terminal, found)
    return OK


def _print_dumps(terminal: Terminal, arguments: argparse.Namespace) -> int:
    from torch_topoopt.launcher.supervise import inspect_hosts

    job = inspect_hosts.job_of_server(arguments.run, arguments.dumps_of)
    _ask_running_ranks(terminal, job, arguments.wait)
    console.print_json(inspect_hosts.dumps_of(job, arguments.dumps_of))
    return OK


def _of_hosts(arguments: argparse.Namespace) -> Inspection:
    from torch_topoopt.fabric.cluster_file.load import load_cluster
    from torch_topoopt.launcher.supervise.inspect_hosts import collect
    from torch_topoopt.supervision.culprits import find_culprits

    dumps, hosts = collect(load_cluster(arguments.cluster), arguments)
    return Inspection(dumps, find_culprits(dumps), hosts=hosts)


def _of_folder(terminal: Terminal, arguments: argparse.Namespace) -> Inspection:
    from torch_topoopt.supervision.culprits import find_culprits
    from torch_topoopt.supervision.dumps import read_dumps

    job = jobs.find(arguments.run, or_last_run=True)
    _ask_running_ranks(terminal, job, arguments.wait)
    folder = job.last_dumps() or job.path
    dumps = read_dumps(folder)
    return Inspection(dumps, find_culprits(dumps), folder)


def _show(terminal: Terminal, found: Inspection) -> None:
    answered = [host for host in found.hosts or () if host.error is None]
    terminal.line(f"{len(found.dumps)} dumps in {found.folder or f'{len(answered)} hosts'}")
    for host in found.hosts or ():
        if host.error is not None:
            console.warning(host.error)
    if not found.findings:
        terminal.line("no operation waits for anybody, and none has failed")
    for i, finding in enumerate(found.findings):
        terminal.line(
            f"{'also' if i else 'culprit' if finding.ranks else 'finding'}: {finding.text}"
        )
    _show_ranks(terminal, found.dumps)


def _ask_running_ranks(terminal: Terminal, job: JobFolder, limit_s: float) -> None:
    """New dumps of the running ranks; waits for them, with a limit."""
    from torch_topoopt.supervision.statuses import read_statuses

    running = [status for status in read_statuses(job).values() if status.alive]
    if not running or any(status.failure for status in running):
        return  # keeps the dumps of a failure
    before = {s.rank: _changed(job.dump(s.attempt, s.rank)) for s in running}
    try:
        job.ask_for_dumps("asked for")
    except OSError as error:
        raise InputError(f"{job.request}: {error.strerror}") from None
    deadline = time.monotonic() + limit_s
    late = running
    while late and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        late = [s for s in late if _changed(job.dump(s.attempt, s.rank)) == before[s.rank]]
    terminal.line(
        f"the job runs: {len(running) - len(late)} of {len(running)} ranks wrote new dumps"
    )


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _show_ranks(terminal: Terminal, dumps: dict[int, Dump]) -> None:
    rows = []
    for rank, dump in sorted(dumps.items()):
        waiting = dump.unfinished
        last = waiting[0] if waiting else dump.calls[-1] if dump.calls else None
        doing = "nothing was called"
        if last is not None:
            more = f", {len(waiting) - 1} more" if len(waiting) > 1 else ""
            doing = f"{last}: {last.outcome}{more}"
        rows.append((f"rank {rank}", str(dump.server), dump.host, doing, dump.where))
    terminal.table("Ranks", ("rank", "server", "host", "first unfinished or last call", "at"), rows)
    reasons = {dump.why: rank for rank, dump in sorted(dumps.items(), reverse=True)}
    for why, rank in reasons.items():
        terminal.line(f"rank {rank} dumped for: {why}")
