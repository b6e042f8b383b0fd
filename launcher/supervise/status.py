"""`topoopt status`: what a running job does at this moment."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.supervise import jobs
from torch_topoopt.plan.units import format_bytes, format_gbps

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.plan import Link
    from torch_topoopt.supervision.job_files import JobFolder
    from torch_topoopt.supervision.statuses import RunningCall, Status

_DESCRIPTION = """\
Shows a running job, again every second until it ends or Ctrl-C: the iteration and how many a
second, the rate of every link beside the plan's, links that are down or degraded (busy, at less
than half of the planned rate), the operation that each rank is in, and what it has held for others
as a relay. The ranks write this once a second into the folder of their run; of a job on several
hosts, those are shown whose folder this host sees.

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
    shown = _RunningJob(job)
    shown.read()
    if not shown.ranks:
        raise InputError(
            f"RUN_DIR: {job.path}: no rank of it runs; `topoopt inspect` looks at dumps"
        )
    if arguments.json:
        console.print_json(shown.figures())
        return OK
    terminal = console.Terminal()
    if arguments.once or not terminal.moves:
        for table in shown.tables():
            terminal.line(table) if isinstance(table, str) else terminal.table(*table)
        return OK
    with terminal.screen() as show:
        while shown.ranks:
            show(shown.tables())
            time.sleep(1.0)
            shown.read()
    terminal.line(f"{job.path}: the job has ended")
    return OK


@dataclass
class _RunningJob:
    """A job as it was read last, and what its plan says of its links."""

    folder: JobFolder

    def __post_init__(self) -> None:
        self.ranks: dict[int, Status] = {}
        self.planned_gbps = _planned_rates(self.folder)
        self.iterations_per_s: float | None = None
        self._first: tuple[float, int] | None = None  # when, and the iteration then

    def read(self) -> None:
        from torch_topoopt.supervision.statuses import read_statuses

        self.ranks = {r: s for r, s in read_statuses(self.folder).items() if s.alive}
        if not self.ranks:
            return
        now = (max(s.time_ns for s in self.ranks.values()) / 1e9, self.iteration)
        if self._first is None:
            self._first = now
        elif now[0] > self._first[0]:
            self.iterations_per_s = (now[1] - self._first[1]) / (now[0] - self._first[0])

    @property
    def iteration(self) -> int:
        """That all ranks have reached."""
        return min((status.iteration for status in self.ranks.values()), default=0)

    @property
    def world_size(self) -> int:
        return max((status.world_size for status in self.ranks.values()), default=0)

    def figures(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "run_dir": str(self.folder.path),
            "world_size": self.world_size,
            "iteration": self.iteration,
            "ranks": [status.figures() for status in self.ranks.values()],
            "links": [
                {
                    "rank": rank,
                    "source": link.link.source,
                    "source_port": link.link.source_port,
                    "target": link.link.target,
                    "target_port": link.link.target_port,
                    "gbps": link.gbps,
                    "planned_gbps": self.planned_gbps.get(link.link),
                    "busy": link.busy,
                    "state": link.state(self.planned_gbps.get(link.link)),
                }
                for rank, status in self.ranks.items()
                for link in status.links
                if link.link.source_port >= 0
            ],
        }

    def tables(self) -> list[Any]:
        """Lines, and what Terminal.table takes."""
        speed = "" if self.iterations_per_s is None else f", {self.iterations_per_s:.3g} a second"
        lines: list[Any] = [
            f"{self.folder.path}: {len(self.ranks)} of {self.world_size} ranks, iteration "
            f"{self.iteration}{speed}"
        ]
        lines.append(("Ranks", _RANK_COLUMNS, [_rank_row(s) for s in self.ranks.values()]))
        rows = self._link_rows()
        if rows:
            lines.append(("Links, in the last second", _LINK_COLUMNS, rows))
        lines += [
            f"rank {s.rank} has failed: {s.failure}" for s in self.ranks.values() if s.failure
        ]
        return lines

    def _link_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for status in self.ranks.values():
            for rate in status.links:
                link = rate.link
                if link.source_port < 0:
                    continue
                planned = self.planned_gbps.get(link)
                rows.append(
                    (
                        f"server {link.source} port {link.source_port} -> server {link.target} "
                        f"port {link.target_port}",
                        format_gbps(round(rate.gbps, 6)),
                        "-" if planned is None else format_gbps(planned),
                        f"{rate.busy:.0%}",
                        format_bytes(rate.sent_bytes),
                        format_bytes(rate.relayed_bytes),
                        rate.state(planned),
                    )
                )
        return rows


_RANK_COLUMNS = ("rank", "server", "host", "iteration", "operation", "for others, at most", "seen")
_LINK_COLUMNS = ("link", "rate", "planned", "busy", "sent", "relayed", "state")


def _rank_row(status: Status) -> tuple[str, ...]:
    age_s = max(0.0, time.time() - status.time_ns / 1e9)
    return (
        f"rank {status.rank}",
        str(status.server),
        status.host,
        str(status.iteration),
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


def _planned_rates(folder: JobFolder) -> dict[Link, float]:
    """Gb/s of the plan's links whose rates its wiring knows; an empty dict without a plan."""
    from torch_topoopt.fabric.wiring import Wiring
    from torch_topoopt.plan import Plan

    plan_path, wiring_path = folder.path / "plan.json", folder.path / "wiring.json"
    if not (plan_path.is_file() and wiring_path.is_file()):
        return {}
    return Wiring.load(wiring_path).planned_rates(Plan.load(plan_path))
