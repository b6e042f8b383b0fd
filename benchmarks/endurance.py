"""Collectives and training while cables are cut and repaired, every result checked.

    sudo .venv/bin/python benchmarks/endurance.py
    sudo .venv/bin/python benchmarks/endurance.py --minutes 1 --seed 7

Emulated hosts run a loop of all_reduce, all_to_all, broadcast and DDP steps. Every --fault-every
seconds a random cable is cut (its interface set down, its packets dropped at one end or both, its
connections reset) and others are repaired; one or two are cut at a time, and the hosts stay
connected. --seed repeats the faults of a run.

Printed are the exit code, the steps, and the throughput of all_reduce in the quiet times between
cuts (from --settle seconds after a turn to the next) relative to that of the intact fabric, which
is measured before the first cut. With d ports per host, the rings of a lost cable are those of one
of r = d / 2 cycles of cables: (r - 1) / r is left to whole rings.

The exit code is 0 if that of the run was, and every result was right.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fault_injection import faulted_job
from fault_injection.cable_faults import KINDS
from fault_injection.faulted_job import Job, in_folder
from harness.rank_processes import exit_code_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fault_injection.faulted_job import Outcome

_SPARE_S = 240.0  # for start and end, on a busy machine


@dataclass(frozen=True)
class Result:
    """`intact_s` and `between_s` (by the number of cut cables): times of all_reduces."""

    outcome: Outcome
    steps: int
    intact_s: list[float]
    between_s: dict[int, list[float]]

    @property
    def passed(self) -> bool:
        return self.outcome.exit_code == 0 and self.steps > 0 and self.outcome.faults > 0

    def ratio(self, cut: int) -> float | None:
        """Throughput with so many cables cut relative to the intact fabric's, medians."""
        if not self.intact_s or not self.between_s.get(cut):
            return None
        return statistics.median(self.intact_s) / statistics.median(self.between_s[cut])


def endure(
    folder: Path,
    *,
    seconds: float,
    every_s: float,
    seed: int,
    size_bytes: int = 1 << 20,
    settle_s: float = 1.5,
    servers: int = 8,
    degree: int = 4,
    bandwidth: str = "25Mbps",
    kinds: Sequence[str] = KINDS,
) -> Result:
    """Runs the loop for `seconds`; what happens is printed, with the seed."""
    started = time.monotonic()

    def log(text: str) -> None:
        print(f"{time.monotonic() - started:8.2f} s  {text}", flush=True)

    log(f"seed {seed}; output in {folder / 'output'}")
    result = folder / "result.json"
    arguments = [f"{seconds:g}", str(size_bytes), str(result)]
    job = Job("endurance_rank.py", arguments, folder, servers, degree, bandwidth)
    outcome = faulted_job.run(
        job, limit_s=seconds + _SPARE_S, every_s=every_s, seed=seed, kinds=kinds, log=log
    )
    if outcome.problem:
        log(f"no more faults: {outcome.problem}")
    log(f"exit code {outcome.exit_code} after {outcome.faults} faults")
    if not result.exists():
        return Result(outcome, 0, [], {})
    document = json.loads(result.read_text(encoding="utf-8"))
    intact, between = _sorted_times(document["timed"], outcome, settle_s)
    return Result(outcome, document["steps"], intact, between)


def _sorted_times(
    timed: list[tuple[float, float]], outcome: Outcome, settle_s: float
) -> tuple[list[float], dict[int, list[float]]]:
    """Seconds of all_reduces before the first turn, and in the quiet times by number of cuts."""
    turns = outcome.turns
    first = turns[0].begin_s if turns else float("inf")
    intact = [end - begin for begin, end in timed if end < first]
    between: dict[int, list[float]] = {}
    for turn, following in itertools.pairwise(turns):
        between.setdefault(turn.cut, []).extend(
            end - begin
            for begin, end in timed
            if begin > turn.end_s + settle_s and end < following.begin_s
        )
    return intact, between


def describe(result: Result) -> None:
    outcome = result.outcome
    checked = "all results right" if outcome.exit_code == 0 else "FAILED"
    print(
        f"exit code {outcome.exit_code}, {outcome.faults} faults, {result.steps} steps, {checked}"
    )
    if result.intact_s:
        print(f"all_reduce on the intact fabric: {statistics.median(result.intact_s):.3f} s")
    for cut, seconds in sorted(result.between_s.items()):
        if ratio := result.ratio(cut):
            print(f"  with {cut} cut: {ratio:.3f} of that throughput ({len(seconds)} all_reduces)")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--fault-every", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--settle", type=float, default=1.5, metavar="SECONDS")
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--degree", type=int, default=4)
    parser.add_argument("--bandwidth", default="25Mbps")
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes of a timed all_reduce")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of faults: {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, help="of the faults (default: a random one)")
    parser.add_argument("--folder", type=Path, help="keep results and output there")
    return parser.parse_args(argv)


def benchmark(options: argparse.Namespace, passed: list[bool]) -> None:
    run = functools.partial(
        endure,
        seconds=options.minutes * 60,
        every_s=options.fault_every,
        seed=random.randrange(1 << 32) if options.seed is None else options.seed,
        size_bytes=options.size,
        settle_s=options.settle,
        servers=options.servers,
        degree=options.degree,
        bandwidth=options.bandwidth,
        kinds=options.kinds.split(","),
    )
    result = in_folder(options.folder, "endurance", run)
    describe(result)
    passed.append(result.passed)


def main() -> int:
    options = parse_arguments()
    passed: list[bool] = []
    code = exit_code_of("endurance", lambda: benchmark(options, passed))
    return code or (0 if all(passed) else 1)


if __name__ == "__main__":
    sys.exit(main())
