"""The simulators on the workloads that other simulators were measured on: time, memory, result.

    python benchmarks/simulators.py
    python benchmarks/simulators.py -w ring-16,all-to-all --rounds 5 -J results.json
    python benchmarks/simulators.py --growth        # one ring, 64 to 1024 hosts

Every run is a process of its own, so that its peak memory is its own; of --rounds runs the fastest
counts. `completion` is simulated time, `CPU` the run alone without reading the flows, `exact` what
the closed form or an exact max-min code says. SimGrid 4.1 (equal weights) and a plain C++ max-min
that solves all rates anew were measured once, on 2 cores of a Xeon with AVX-512: their CPU seconds
are for orientation, unless this is that machine.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flow_workloads as workloads

from torch_topoopt import sim

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT_S = 900


@dataclass(frozen=True)
class Case:
    """A workload, its exact completion time where it is known, and CPU seconds of the peers."""

    make: Callable[[], workloads.Workload]
    exact_ms: float | None = None
    simgrid_s: float | None = None
    plain_s: float | None = None


CASES = {
    "ring-16": Case(lambda: workloads.ring_all_reduce(16), 15.030),
    "ring-128": Case(lambda: workloads.ring_all_reduce(128), 16.129, 0.023, 0.003),
    "circulant-128": Case(workloads.circulant_all_reduce, 4.22276, 0.117, 0.033),
    "all-to-all": Case(workloads.all_to_all, 5.044),
    "all-to-all-ecmp": Case(lambda: workloads.all_to_all(seed=1), None, 0.119, 0.014),
    "all-to-all-distinct": Case(
        lambda: workloads.all_to_all(seed=1, distinct_sizes=True), None, 2.1, 0.41
    ),
    "permutation": Case(workloads.permutation),
    "fat-tree-all-to-all": Case(workloads.fat_tree_all_to_all, None, 4.05, 0.23),
    "incast-64": Case(lambda: workloads.incast(64), 64 * 0.08 + 2e-3),
}


def measure(make: Callable[[], workloads.Workload], level: str) -> dict[str, Any]:
    """One run in this process."""
    workload = make()
    result = sim.run_flows(
        workload.links, workload.flows, nodes=workload.nodes, hosts=workload.hosts, level=level
    )
    return result.summary()


def _run(name: str, level: str, results: Any) -> None:
    make = (
        CASES[name].make
        if name in CASES
        else lambda: workloads.ring_all_reduce(int(name.removeprefix("growth-")))
    )
    results.put(measure(make, level))


def best_of(name: str, level: str, rounds: int) -> dict[str, Any]:
    """The fastest of `rounds` runs, each in a process of its own; raises RuntimeError."""
    context = multiprocessing.get_context("spawn")
    runs = []
    for _ in range(rounds):
        results = context.SimpleQueue()
        process = context.Process(target=_run, args=(name, level, results))
        process.start()
        process.join(_LIMIT_S)
        if process.exitcode != 0 or results.empty():
            process.kill()
            raise RuntimeError(f"{name} at {level} level: exit status {process.exitcode}")
        runs.append(results.get())
    return min(runs, key=lambda run: run["cpu_seconds"])


def _row(name: str, level: str, run: dict[str, Any]) -> dict[str, Any]:
    case = CASES.get(name)
    hops = run["packet_hops"]
    return {
        "workload": name,
        "level": level,
        **run,
        "exact_ms": case and case.exact_ms,
        "packet_hops_per_cpu_s": hops / run["cpu_seconds"] if hops else None,
        "simgrid_cpu_s": case and case.simgrid_s,
        "plain_cpu_s": case and case.plain_s,
    }


def _show(row: dict[str, Any]) -> None:
    def cell(value: float | None, form: str, width: int) -> str:
        return f"{'-' if value is None else format(value, form):>{width}}"

    faster = row["simgrid_cpu_s"] and row["simgrid_cpu_s"] / row["cpu_seconds"]
    print(
        f"{row['workload']:<20}{row['level']:<8}{row['flows']:>8}"
        f"{row['completion_s'] * 1e3:>15.6f}{cell(row['exact_ms'], '.6f', 12)}"
        f"{row['cpu_seconds'] * 1e3:>11.2f}{row['peak_memory_mb']:>8.0f}"
        f"{cell(row['packet_hops_per_cpu_s'], '.2e', 11)}"
        f"{cell(row['simgrid_cpu_s'], '.3f', 10)}{cell(faster, '.1f', 8)}"
        f"{cell(row['plain_cpu_s'], '.3f', 8)}",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("-w", "--workloads", default=",".join(CASES), help="default: all")
    options.add_argument("-l", "--levels", default=",".join(sim.LEVELS), help="default: all")
    options.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    options.add_argument("--growth", action="store_true", help="rings of 64 to 1024 hosts instead")
    options.add_argument("-J", "--json", metavar="FILE", help="write all rows here")
    arguments = options.parse_args()
    for given, known in (
        (arguments.workloads.split(","), CASES),
        (arguments.levels.split(","), sim.LEVELS),
    ):
        for name in given:
            if name not in known:
                options.error(f"{name!r} is not one of {', '.join(known)}")
    if arguments.rounds < 1:
        options.error(f"--rounds: {arguments.rounds} is not at least 1")
    return arguments


def main() -> int:
    arguments = _arguments()
    names = arguments.workloads.split(",")
    if arguments.growth:
        names = [f"growth-{hosts}" for hosts in (64, 128, 256, 512, 1024)]
    print(f"this machine: {platform.machine()}, {os.cpu_count()} CPUs")
    print(
        f"{'workload':<20}{'level':<8}{'flows':>8}{'completion ms':>15}{'exact ms':>12}"
        f"{'CPU ms':>11}{'MB':>8}{'hops/s':>11}{'SimGrid s':>10}{'faster':>8}{'plain s':>8}"
    )
    rows = []
    for name in names:
        for level in arguments.levels.split(","):
            rows.append(_row(name, level, best_of(name, level, arguments.rounds)))
            _show(rows[-1])
    if arguments.json is not None:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)
    wrong = [
        row["workload"]
        for row in rows
        if row["level"] == "flow"
        and row["exact_ms"] is not None
        and not math.isclose(row["completion_s"] * 1e3, row["exact_ms"], rel_tol=1e-6)
    ]
    if wrong:
        print(f"not the exact completion time: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
