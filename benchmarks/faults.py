"""What a job does when something fails: one row per fault, topoopt beside gloo.

    sudo python benchmarks/faults.py --quick
    sudo python benchmarks/faults.py --repetitions 5 -J faults.json
    sudo python benchmarks/faults.py --only "cable down" --repetitions 50 --peers none

A job of 8 ranks on 8 emulated hosts (network namespaces, four cables each) does all_reduce,
all_to_all and broadcast in a loop and checks every result. At a random moment something is broken:
a random cable, a random rank, or what a rank calls; strangers come. Per fault and repetition:

  detected   from the fault to the first line or error that says so: median, worst
  over       until every rank has done a step that began after the fault, or has raised an error
  slower     the time of a step while the fault lasts, relative to the usual one
  outcome    "goes on" (the job never waits for the repair), "stalls until repair", or "error", in
             how many of the repetitions, if not in all
  wrong      results that were wrong
  gone       ranks that called a living rank gone
  hangs      repetitions in which a rank neither went on nor raised within the limits
  proc ns fd MiB   left behind: processes, namespaces, descriptors of a rank, and the growth of the
             resident memory of a rank (mean over the ranks; median)

and then what the ranks said first. A job that survives is used for the next fault. TOPOOPT_SILENCE_
LIMIT_S is 5; collectives time out after 60 s, those of gloo after 3 s
where the job should end (30 minutes, if not set).
Faults that begin with "run" are those of `topoopt run` of examples/checkpoint.py.
gloo reaches all hosts over addresses that the kernels forward. Where packets are corrupted, nft
changes their bytes and the kernels verify TCP's checksums. Exit code 1: topoopt broke a promise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fault_injection.fault_list import FAULTS, Fault, UnavailableError
from fault_injection.runs import RUN_FAULTS, RunFault
from fault_injection.trials import ENDS, GOES_ON, HANGS, Trial, Trials
from harness.rank_processes import exit_code_of
from harness.results import Result, add_record_option, measured_now, record
from harness.settings import direct_fabric
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.plan.units import parse_gbps

_PEERS = ("gloo",)
if TYPE_CHECKING:
    from collections.abc import Callable

_REPETITIONS = 20
_MOST_FRESH_GROWTH_BYTES = 16 << 20  # of a job without faults before: the first ones fill buffers
_MOST_MEDIAN_GROWTH_BYTES = 1 << 20
_MOST_SAID = 110  # characters
_NAME_WIDTH = 42


@dataclass
class Row:
    """All repetitions of one fault with one backend."""

    fault: Fault | RunFault
    backend: str
    trials: list[Trial] = field(default_factory=list)
    cannot: str = ""  # why it was not run

    @property
    def hangs(self) -> int:
        return sum(trial.outcome == HANGS for trial in self.trials)

    @property
    def growth_bytes(self) -> int:
        growths = [trial.memory_bytes for trial in self.trials]
        return max(0, round(statistics.median(growths))) if growths else 0

    def sum_of(self, name: str) -> int:
        return sum(getattr(trial, name) for trial in self.trials)

    def seconds(self, name: str) -> list[float]:
        return [value for trial in self.trials if (value := getattr(trial, name)) is not None]

    @property
    def outcome(self) -> str:
        counts = dict.fromkeys((GOES_ON, ENDS), 0)
        for trial in self.trials:
            counts[trial.outcome] = counts.get(trial.outcome, 0) + 1
        found = {outcome: count for outcome, count in counts.items() if count}
        if len(found) == 1:
            return next(iter(found))
        return ", ".join(f"{outcome} ({count})" for outcome, count in found.items())

    @property
    def _most_over_s(self) -> float | None:
        return getattr(self.fault, "most_over_s", None)

    @property
    def said(self) -> str:
        return next((trial.said for trial in self.trials if trial.said), "")

    def broken_promises(self) -> list[str]:
        """What is other than it should be with topoopt."""
        wanted = ENDS if self.fault.ends else GOES_ON
        found = []
        for trial in self.trials:
            if trial.outcome != wanted:
                found.append(f"{trial.outcome} instead of {wanted}: {trial.detail or trial.said}")
            elif trial.detail:
                found.append(trial.detail)
            elif self.fault.notice and trial.detected_s is None:
                found.append(f"nobody said {self.fault.notice!r}")
            elif self._most_over_s is not None and (trial.over_s or 0.0) > self._most_over_s:
                found.append(f"went on after {trial.over_s:.2f} s, not {self._most_over_s:g}")
        found += [
            f"{self.sum_of(name)} {what}"
            for name, what in (
                ("wrong", "wrong results"),
                ("false_gone", "ranks called a living rank gone"),
                ("processes", "processes left"),
                ("namespaces", "namespaces left"),
                ("descriptors", "descriptors left"),
            )
            if self.sum_of(name)
        ]
        fresh = len(self.trials) == 1 or not getattr(self.fault, "leaves_no_trace", True)
        if self.growth_bytes > (_MOST_FRESH_GROWTH_BYTES if fresh else _MOST_MEDIAN_GROWTH_BYTES):
            found.append(f"{self.growth_bytes / 2**20:.1f} MiB of memory left")
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "fault": self.fault.name,
            "backend": self.backend,
            "outcome": self.outcome,
            "cannot": self.cannot,
            "trials": [trial.as_dict() for trial in self.trials],
        }


HEAD = (
    f"# {'fault':{_NAME_WIDTH}} {'backend':8} {'n':>3} {'detected s':>11} {'over s':>13} "
    f"{'slower':>6} {'wrong':>5} {'gone':>4} {'hangs':>5} {'proc':>4} {'ns':>3} {'fd':>3} "
    f"{'MiB':>5}  outcome: said"
)


def line(row: Row) -> str:
    """A line of the table, under HEAD."""
    begin = f"  {row.fault.name:{_NAME_WIDTH}} {row.backend:8} {len(row.trials):3}"
    if row.cannot:
        return f"{begin} not run: {row.cannot}"
    slower = row.seconds("slower")
    said = " ".join(row.said.split())
    if len(said) > _MOST_SAID:
        said = said[: _MOST_SAID - 3] + "..."
    cells = (
        f"{_pair(row.seconds('detected_s')):>11} {_pair(row.seconds('over_s')):>13} "
        f"{f'{statistics.median(slower):.2f}' if slower else '-':>6} "
        f"{row.sum_of('wrong'):5} {row.sum_of('false_gone'):4} {row.hangs:5} "
        f"{row.sum_of('processes'):4} {row.sum_of('namespaces'):3} {row.sum_of('descriptors'):3} "
        f"{row.growth_bytes / 2**20:5.1f}"
    )
    return f"{begin} {cells}  {row.outcome}{': ' + said if said else ''}"


def _pair(seconds: list[float]) -> str:
    """Median and worst."""
    return f"{statistics.median(seconds):.2f} {max(seconds):.2f}" if seconds else "-"


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The options; exits for one that is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    parser.add_argument(
        "--only", metavar="TEXT", action="append", help="faults with TEXT in their name"
    )
    parser.add_argument("--repetitions", type=int, help=f"of each fault (default: {_REPETITIONS})")
    parser.add_argument(
        "--quick", action="store_true", help="one repetition of each, without gloo if not asked for"
    )
    parser.add_argument("--peers", choices=("gloo", "none"), help="beside topoopt (default: gloo)")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--degree", type=int, default=4, help="cables of a host")
    parser.add_argument("--bandwidth", default="25Mbps", help="of a link and direction")
    parser.add_argument("--seed", type=int, help="of the random moments, cables and ranks")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    add_record_option(parser)
    options = parser.parse_args(argv)
    if options.repetitions is None:
        options.repetitions = 1 if options.quick else _REPETITIONS
    if options.peers is None:
        options.peers = "none" if options.quick else "gloo"
    if options.repetitions < 1:
        parser.error(f"--repetitions: {options.repetitions} is not at least 1")
    options.faults = [
        fault
        for name, fault in (FAULTS | RUN_FAULTS).items()
        if not options.only or any(text in name for text in options.only)
    ]
    if not options.faults:
        parser.error(f"--only: no fault has {' or '.join(options.only)} in its name; see --list")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 32)
    return options


class Table:
    """Prints the rows as they come, shows how far it is, and keeps them for the JSON file."""

    def __init__(
        self, options: argparse.Namespace, setting: str, bar: Progress, total: int
    ) -> None:
        self._options = options
        self._setting = setting
        self._bar = bar
        self._task = bar.add_task("", total=total)
        self.rows: list[Row] = []

    def head(self) -> None:
        print(f"# {self._setting}")
        print(f"# {self._options.repetitions} repetitions, seed {self._options.seed}\n{HEAD}")

    def add(self, row: Row, trial: Callable[[], Trial]) -> None:
        """Runs all repetitions of a row."""
        self._bar.update(self._task, description=f"{row.backend}: {row.fault.name}", refresh=True)
        for _ in range(self._options.repetitions):
            if not row.cannot:
                try:
                    row.trials.append(trial())
                except UnavailableError as reason:
                    row.cannot = f"this machine lacks {reason}"
                except RuntimeError as error:
                    row.trials.append(Trial("not injected", detail=str(error)))
            self._bar.update(self._task, advance=1, refresh=True)
        self.rows.append(row)
        print(line(row), flush=True)
        if self._options.json:
            self._save()

    def _save(self) -> None:
        document = {
            "version": 1,
            "setting": self._setting,
            "seed": self._options.seed,
            "repetitions": self._options.repetitions,
            "results": [row.as_dict() for row in self.rows],
        }
        Path(self._options.json).write_text(json.dumps(document, indent=1) + "\n")


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        auto_refresh=False,  # ranks are forked from this process: it has no threads
        redirect_stdout=sys.stdout.isatty(),
        disable=not console.is_terminal,
    )


def benchmark(options: argparse.Namespace) -> list[Row]:
    """Prints the table; all its rows."""
    gbps = parse_gbps(options.bandwidth)
    backends = ("topoopt", "gloo") if options.peers == "gloo" else ("topoopt",)
    chance = random.Random(options.seed)
    of_jobs = [fault for fault in options.faults if isinstance(fault, Fault)]
    of_runs = [fault for fault in options.faults if isinstance(fault, RunFault)]
    total = options.repetitions * (len(of_jobs) * len(backends) + len(of_runs))
    with (
        tempfile.TemporaryDirectory(prefix="topoopt-faults-") as folder,
        _progress() as bar,
    ):
        with direct_fabric(options.ranks, options.degree, gbps, 1500) as setting:
            setting.environment["XDG_CACHE_HOME"] = folder
            table = Table(options, setting.description, bar, total)
            table.head()
            for backend in backends if of_jobs else ():
                with Trials(setting, chance) as trials:
                    for fault in of_jobs:
                        table.add(Row(fault, backend), partial(trials.run, fault, backend))
        for run_fault in of_runs:
            table.add(
                Row(run_fault, "topoopt"),
                partial(run_fault.trial, options, chance, Path(folder)),
            )
    if left := netns_kernel.of_fabric(f"bench-{os.getpid()}"):
        print(f"# namespaces left: {', '.join(left)}")
    return table.rows


def report(rows: list[Row]) -> int:
    """Says which promises topoopt broke; their number."""
    broken = 0
    for row in rows:
        if row.backend == "topoopt":
            for promise in row.broken_promises():
                broken += 1
                print(f"# {row.fault.name}: {promise}")
    faults = sum(row.backend == "topoopt" and bool(row.trials) for row in rows)
    print(f"# {faults} faults; broken promises: {broken}")
    return broken


def results_to_record(rows: list[Row]) -> list[Result]:
    """The seconds until each fault was detected, and until it was over."""
    return [
        measured_now(
            f"{row.fault.name} ({row.backend}): {name}",
            statistics.median(seconds),
            "s",
            value_range=(min(seconds), max(seconds)),
        )
        for row in rows
        for name, seconds in (
            ("detected", row.seconds("detected_s")),
            ("over", row.seconds("over_s")),
        )
        if seconds
    ]


def _end_in_good_order(number: int, frame: object) -> None:
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)  # what is left to do is to clean up
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    options = parse_arguments(argv)
    if options.list:
        print("\n".join(FAULTS | RUN_FAULTS))
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_in_good_order)
    broken: list[int] = []

    def run() -> None:
        rows = benchmark(options)
        broken.append(report(rows))
        if options.record:
            record(options.record, results_to_record(rows))

    code = exit_code_of("faults", run, RuntimeError)
    return code or int(any(broken))


if __name__ == "__main__":
    sys.exit(main())
