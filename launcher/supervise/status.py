"""`topoopt status`: the current state of a running job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import console, parser, shared_options, signals
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.supervise import jobs
from torch_topoopt.plan.units import format_bytes, format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.supervision.link_groups import LinkNow
    from torch_topoopt.supervision.running_job import RunningJob
    from torch_topoopt.supervision.statuses import RunningCall, Status

_DESCRIPTION = """\
Shows a running job, again every second until it ends or Ctrl-C: the iteration and how many a
second, the rate of every link and the planned one, links that are down or degraded (busy, at less
than half of the planned rate), the operation that each rank is in, and the most that it held for
others as a relay; with a route controller also the switches on the path of each link. The ranks
write this once a second into the folder of their run; of a job on several hosts, those are shown
whose folder this host sees.

RUN_DIR is the folder of the run (default: your job on this machine that started last, also one that
topoopt run has not started)."""

_EXAMPLES = """\
  topoopt status
  topoopt status runs/2026-01-31T12-00-00 --once
  topoopt status --json | python -m json.tool"""

_STALE_S = 5.0  # a rank writes every second, unless its processor is very busy


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("status", _DESCRIPTION, _EXAMPLES)
    jobs.add_run(options, "folder of the run (default: the job that started last)")
    options.add_argument("--once", action="store_true", help="print once, and do not wait for more")
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    job = jobs.find(arguments.run)
    from torch_topoopt.supervision.running_job import RunningJob

    shown = RunningJob(job)
    shown.read()
    if not shown.ranks:
        raise InputError(
            f"{job.path}: this job is not running; use `topoopt inspect` for its dumps"
        )
    if arguments.json:
        console.print_json(shown)
        return OK
    terminal = console.Terminal()
    if arguments.once or not terminal.moves:
        for table in _tables(shown):
            terminal.line(table) if isinstance(table, str) else terminal.table(*table)
        return OK
    with terminal.screen() as show:
        while shown.ranks:
            signals.check()
            show(_tables(shown))
            time.sleep(1.0)
            shown.read()
    terminal.line(f"{job.path}: the job has ended")
    return OK


def _tables(job: RunningJob) -> list[Any]:
    """Lines, and arguments of Terminal.table."""
    speed = "" if job.iterations_per_s is None else f", {job.iterations_per_s:.3g} a second"
    lines: list[Any] = [
        f"{job.folder.path}: {len(job.ranks)} of {job.world_size} ranks, iteration "
        f"{job.iteration}{speed}"
    ]
    rows = [_rank_row(s, job.own_s.get(s.rank)) for s in job.ranks.values()]
    lines.append(("Ranks", _RANK_COLUMNS, rows))
    if links := job.links:
        with_paths = any(link.path is not None for link in links)
        columns = (*_LINK_COLUMNS, "path") if with_paths else _LINK_COLUMNS
        rows = [(*_link_row(link), _path(link))[: len(columns)] for link in links]
        lines.append(("Links, in the last second", columns, rows))
    if job.slowest is not None:
        lines.append(f"slowest {job.slowest}")
    lines += [f"rank {s.rank} has failed: {s.failure}" for s in job.ranks.values() if s.failure]
    return lines


def _link_row(now: LinkNow) -> tuple[str, ...]:
    rate, link = now.rate, now.rate.link
    return (
        f"server {link.source} port {link.source_port} -> server {link.target} "
        f"port {link.target_port}",
        format_gbps(round(rate.gbps, 6)),
        "-" if now.planned_gbps is None else format_gbps(now.planned_gbps),
        f"{rate.busy:.0%}",
        format_bytes(rate.sent_bytes),
        format_bytes(rate.relayed_bytes),
        now.state,
    )


def _path(link: LinkNow) -> str:
    """The switches that a controller assigned."""
    return " ".join(link.path) or "ECMP" if link.path is not None else "-"


_RANK_COLUMNS = (
    "rank", "server", "host", "iteration", "own work", "operation", "for others, at most", "seen",
)  # fmt: skip
_LINK_COLUMNS = ("link", "rate", "planned", "time busy", "sent", "relayed", "state")


def _rank_row(status: Status, own_s: float | None) -> tuple[str, ...]:
    age_s = max(0.0, time.time() - status.time_ns / 1e9)
    return (
        str(status.rank),
        str(status.server),
        status.host,
        str(status.iteration),
        "-" if own_s is None else format_seconds(own_s),
        _operation(status),
        format_bytes(status.relay_peak_bytes),
        "now" if age_s < _STALE_S else f"{age_s:.0f} s ago",
    )


def _operation(status: Status) -> str:
    if not status.calls:
        return f"none ({status.called} called)"
    call: RunningCall = next((c for c in status.calls if c.state == "started"), status.calls[0])
    number = f" {call.number}" if call.number else ""
    more = f", {status.unfinished - 1} more" if status.unfinished > 1 else ""
    return f"{call.name}{number} of group {call.group} for {call.seconds:.1f} s{more}"
