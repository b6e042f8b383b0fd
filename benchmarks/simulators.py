"""The simulators on the workloads that other simulators were measured on: time, memory, result.

    python benchmarks/simulators.py
    python benchmarks/simulators.py -w ring-16,all-to-all --rounds 5 -J results.json
    python benchmarks/simulators.py -w dlrm-128 --transport constant,roce,dctcp,ndp
    python benchmarks/simulators.py --growth        # one ring and one DLRM, 128 to 1024 hosts
    python benchmarks/simulators.py --ns3-python VENV/bin/python    # if ns-3 is not installed here

Every run is a process of its own that reads the flows from a file, so that its peak memory is its
own (an interpreter with numpy is in it); of --rounds runs the fastest counts. `completion` is
simulated time, `CPU` the run alone without reading the flows, `exact` what the closed form or an
exact max-min code says. Below a run of ours stand the recorded runs of other simulators on the
same workload (references/simulator_peers.py), with our speed as a multiple of theirs: by CPU
seconds at flow level, by packet-hops per CPU second at packet level. ns-3 runs here too
(references/ns3_flows.py), the same flows without a transport, where its package can be imported.
Rows are printed as they come.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from references import flow_workloads as workloads
from references import simulator_peers as peers
from torch_topoopt import sim
from torch_topoopt.plan.result_json import plain
from torch_topoopt.sim.packet import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_LIMIT_S = 3600
_GROWTH_HOSTS = (128, 256, 512, 1024)
_NS3_MOST_HOPS = 10_000_000  # of packets: about 20 s


@dataclass(frozen=True)
class Case:
    """A workload, and its exact completion time where it is known.

    `options` are of the packet level, by transport: in htsim the acknowledgements of DCTCP wait
    behind data in the queues of its hosts."""

    make: Callable[[], workloads.Workload]
    exact_ms: float | None = None
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


_AS_HTSIM = {"dctcp": {"acks": "links", "control_first": False}}


CASES = {
    "ring-16": Case(lambda: workloads.ring_all_reduce(16), 15.030),
    "ring-128": Case(lambda: workloads.ring_all_reduce(128), 16.129),
    "circulant-128": Case(workloads.circulant_all_reduce, 4.22276),
    "all-to-all": Case(workloads.all_to_all, 5.044, _AS_HTSIM),
    "all-to-all-ecmp": Case(lambda: workloads.all_to_all(seed=1)),
    "all-to-all-distinct": Case(lambda: workloads.all_to_all(seed=1, distinct_sizes=True)),
    "permutation": Case(workloads.permutation),
    "fat-tree-all-to-all": Case(workloads.fat_tree_all_to_all),
    "incast-64": Case(lambda: workloads.incast(64), 64 * 0.08 + 2e-3),
    "dlrm-128": Case(workloads.dlrm_iteration),
}
CASES |= {f"ring-{n}": Case(partial(workloads.ring_all_reduce, n)) for n in (256, 512, 1024)}
CASES |= {f"dlrm-{n}": Case(partial(workloads.dlrm_iteration, n)) for n in (256, 512, 1024)}
_DEFAULT = ",".join(list(CASES)[:-6])


@dataclass(frozen=True)
class Run:
    """One cell of the table; `transport` None: flow level."""

    workload: str
    transport: str | None

    @property
    def level(self) -> str:
        return "flow" if self.transport is None else "packet"

    @property
    def label(self) -> str:
        return "flow" if self.transport is None else f"packet/{self.transport}"


def measure(path: str, run: Run) -> dict[str, Any]:
    """One run in this process, of the flows in a file."""
    options: dict[str, Any] = {}
    if run.transport is not None:
        options = {"transport": run.transport, **CASES[run.workload].options.get(run.transport, {})}
    return plain(sim.run_flow_file(path, level=run.level, **options))


def write_workload(name: str, path: str) -> None:
    workload = CASES[name].make()
    with open(path, "w", encoding="utf-8") as file:
        sim.write_flows(
            file, workload.links, workload.flows, nodes=workload.nodes, hosts=workload.hosts
        )


def _into(results: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    results.put(function(*arguments))


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls it in a process of its own; raises RuntimeError if that fails."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_into, args=(results, function, arguments))
    process.start()
    process.join(_LIMIT_S)
    if process.exitcode != 0 or results.empty():
        process.kill()
        raise RuntimeError(f"{function.__name__}{arguments}: exit status {process.exitcode}")
    return results.get()


def best_of(path: str, run: Run, rounds: int) -> dict[str, Any]:
    """The fastest of `rounds` runs, each in a process of its own; raises RuntimeError."""
    done = [apart(measure, path, run) for _ in range(rounds)]
    return min(done, key=lambda figures: figures["cpu_seconds"])


def run_ns3(python: str, path: str, run: Run) -> peers.PeerRun:
    """ns-3 on the same flows; raises RuntimeError if it fails."""
    script = str(Path(__file__).parent / "references" / "ns3_flows.py")
    command = [python, script, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ns-3, {run.workload}: {done.stderr.strip()[-500:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    if not figures["complete"]:
        raise RuntimeError(f"ns-3, {run.workload}: not all flows were delivered")
    return peers.PeerRun(
        run.workload,
        "ns-3, here",
        run.transport,
        figures["cpu_seconds"],
        figures["completion_s"] * 1e3,
        figures["packet_hops"] / figures["cpu_seconds"],
        figures["peak_memory_mb"],
    )


def has_ns3(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ns3') is None)"
    try:
        return subprocess.run([python, "-c", code], check=False, timeout=60).returncode == 0
    except OSError:
        return False


def row_of(
    run: Run, figures: dict[str, Any], measured: Sequence[peers.PeerRun] = ()
) -> dict[str, Any]:
    """The figures of a run, what is exact, and the runs of others beside it with our ratio: those
    recorded, and those `measured` on this machine."""
    case = CASES[run.workload]
    hops_per_s = figures["packet_hops"] / figures["cpu_seconds"] if run.level == "packet" else None
    beside = []
    recorded = peers.recorded_runs(run.workload, run.level, run.transport)
    for peer in (*recorded, *measured):
        faster = peer.cpu_s / figures["cpu_seconds"]
        if hops_per_s is not None and peer.packet_hops_per_s is not None:
            faster = hops_per_s / peer.packet_hops_per_s
        machine = peers.MACHINE if peer in recorded else _processor()
        beside.append({**asdict(peer), "machine": machine, "faster": faster})
    return {
        "workload": run.workload,
        "level": run.level,
        "transport": run.transport,
        **figures,
        "exact_ms": case.exact_ms,
        "packet_hops_per_cpu_s": hops_per_s,
        "peers": beside,
    }


def _line(
    names: Sequence[str],
    flows: int | None,
    completion_ms: float | None,
    exact_ms: float | None,
    cpu_s: float,
    memory_mb: float | None,
    hops_per_s: float | None,
    faster: float | None,
) -> None:
    def cell(value: float | None, form: str, width: int) -> str:
        return f"{'-' if value is None else format(value, form):>{width}}"

    print(
        f"{names[0]:<20}{names[1]:<17}{names[2]:<14}{cell(flows, 'd', 8)}"
        f"{cell(completion_ms, '.5f', 13)}{cell(exact_ms, '.5f', 11)}{cell(cpu_s, '.4f', 10)}"
        f"{cell(memory_mb, '.0f', 7)}{cell(hops_per_s, '.2e', 10)}{cell(faster, '.1f', 8)}",
        flush=True,
    )


def show(row: dict[str, Any]) -> None:
    """Our row, and one for each recorded run of a peer."""
    label = row["level"] if row["transport"] is None else f"packet/{row['transport']}"
    _line(
        (row["workload"], label, "ours"),
        row["flows"],
        row["completion_s"] * 1e3,
        row["exact_ms"],
        row["cpu_seconds"],
        row["peak_memory_mb"],
        row["packet_hops_per_cpu_s"],
        None,
    )
    for peer in row["peers"]:
        _line(
            (row["workload"], label, peer["simulator"]),
            None,
            peer["completion_ms"],
            None,
            peer["cpu_s"],
            peer["memory_mb"],
            peer["packet_hops_per_s"],
            peer["faster"],
        )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "-w", "--workloads", default=_DEFAULT, help="default: all of up to 128 hosts"
    )
    options.add_argument("-l", "--levels", default=",".join(sim.LEVELS), help="default: all")
    options.add_argument(
        "--transport",
        default="constant",
        help=f"of the packet level: some of {','.join(TRANSPORTS)} (default: constant)",
    )
    options.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    options.add_argument(
        "--growth", action="store_true", help="one ring and one DLRM of 128 to 1024 hosts instead"
    )
    options.add_argument(
        "--ns3-python",
        metavar="PYTHON",
        default=sys.executable,
        help="interpreter that can import ns-3 (default: this one)",
    )
    options.add_argument("-J", "--json", metavar="FILE", help="write all rows here")
    arguments = options.parse_args()
    for given, known in (
        (arguments.workloads.split(","), CASES),
        (arguments.levels.split(","), sim.LEVELS),
        (arguments.transport.split(","), TRANSPORTS),
    ):
        for name in given:
            if name not in known:
                options.error(f"{name!r} is not one of {', '.join(known)}")
    if arguments.rounds < 1:
        options.error(f"--rounds: {arguments.rounds} is not at least 1")
    return arguments


def _runs(arguments: argparse.Namespace) -> list[Run]:
    names = arguments.workloads.split(",")
    if arguments.growth:
        names = [f"{kind}-{hosts}" for kind in ("ring", "dlrm") for hosts in _GROWTH_HOSTS]
    transports: list[str | None] = []
    for level in arguments.levels.split(","):
        transports += [None] if level == "flow" else arguments.transport.split(",")
    return [Run(name, transport) for name in names for transport in transports]


def _rows(runs: Sequence[Run], rounds: int, ns3_python: str) -> Iterator[dict[str, Any]]:
    """Measures and prints one run after the other; runs of one workload share its file."""
    ns3 = has_ns3(ns3_python)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "flows.txt")
        for workload, of_workload in groupby(runs, key=lambda run: run.workload):
            apart(write_workload, workload, path)
            for run in of_workload:
                figures = best_of(path, run, rounds)
                measured = []
                if ns3 and run.transport == "constant" and figures["packet_hops"] <= _NS3_MOST_HOPS:
                    measured.append(run_ns3(ns3_python, path, run))
                row = row_of(run, figures, measured)
                show(row)
                yield row


def main() -> int:
    arguments = _arguments()
    print(f"ours: on this machine, {_processor()}, {os.cpu_count()} CPUs")
    print(f"others: recorded on {peers.MACHINE}; {peers.VERSIONS}")
    if not has_ns3(arguments.ns3_python):
        see = "(see benchmarks/references/ns3_flows.py)"
        print(f"ns-3 is not run: {arguments.ns3_python} cannot import it {see}")
    print(
        f"{'workload':<20}{'level':<17}{'simulator':<14}{'flows':>8}{'completion ms':>13}"
        f"{'exact ms':>11}{'CPU s':>10}{'MB':>7}{'hops/s':>10}{'faster':>8}"
    )
    rows = list(_rows(_runs(arguments), arguments.rounds, arguments.ns3_python))
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
