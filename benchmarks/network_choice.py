"""Which networks a job without a plan uses, compared with every choice made by hand. As root.

    sudo .venv/bin/python benchmarks/network_choice.py
    sudo .venv/bin/python benchmarks/network_choice.py --shapes line,star --times 0.1 --rounds 3
    sudo .venv/bin/python benchmarks/network_choice.py --bandwidth 50Mbps -J choice.json

Hosts are network namespaces. Cables join them in a line, a star, a paw (a triangle and a fourth
host), a ring or a triangle, and a management network joins all of them through a bridge. It has
`--times` the rate of a cable. Ranks start as under torchrun, without a plan: `chosen` has no
variable set, `cables`, `management` and `both` name interfaces in TOPOOPT_INTERFACES. Each round
starts all four once, one after the other.

A cell is the median over rounds: microseconds of an all_reduce of 16 bytes (in the fastest tenth of
blocks of 20 calls, which other work on the machine has not disturbed), and milliseconds of one of
8 MiB (the median call). `--small` leaves out the latter, which take most of the time. `of best` is
`chosen` over the best choice made by hand for that size, and `used` are the interfaces that
`chosen` uses.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harness.rank_processes import call_in_processes, exit_code_of
from harness.results import Result, add_record_option, measured_now, record
from harness.separate_cases import choice_of
from torch_topoopt.fabric.netns.kernel import create, open_route, path_of, remove, require
from torch_topoopt.fabric.netns.shaper import choose, limit
from torch_topoopt.plan.units import format_bytes, parse_gbps
from torch_topoopt.processes.rank_main import enter_namespace
from torch_topoopt.runtime import backend

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = {
    "line": ((0, 1), (1, 2), (2, 3)),
    "star": ((0, 1), (0, 2), (0, 3)),
    "paw": ((0, 1), (1, 2), (0, 2), (2, 3)),
    "ring": ((0, 1), (1, 2), (2, 3), (0, 3)),
    "triangle": ((0, 1), (1, 2), (0, 2)),
}
# TOPOOPT_INTERFACES of each choice
CHOICES = {"chosen": "", "cables": "^manage", "management": "manage", "both": "cable,manage"}
_SMALL_BYTES, _LARGE_BYTES = 16, 8 << 20
_CALLS = {_SMALL_BYTES: 1000, _LARGE_BYTES: 5}
_BLOCK_CALLS = 20
_UNITS = {_SMALL_BYTES: 1e6, _LARGE_BYTES: 1e3}
_LARGE_S = 3.0  # of all large calls, or one
_MTU = 1500
_STORE_PORT = 29500
_LIMIT_S = 300.0


Outcome = tuple[dict[int, float], list[str]]  # seconds by size, interfaces in use


@dataclass
class Times:
    """Seconds of an all_reduce, by its size in bytes, once per round, and the interfaces in use."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One shape of cables, and the management network's rate as a multiple of a cable's."""

    shape: str
    management_times: float
    fastest_gbps: float

    @property
    def cable_gbps(self) -> float:
        return self.fastest_gbps / max(1.0, self.management_times)

    @property
    def hosts(self) -> int:
        return 1 + max(max(cable) for cable in SHAPES[self.shape])


@contextlib.contextmanager
def hosts_of(case: Case) -> Iterator[list[str]]:
    """The namespaces of the hosts, cabled, until the context ends."""
    mark = f"choice{os.getpid()}"
    names = [f"{mark}-{host}" for host in range(case.hosts)]
    bridge = f"{mark}-bridge"
    with contextlib.ExitStack() as made:
        for name in (*names, bridge):
            create(name)
            made.callback(remove, [name])
        _ip(f"-n {bridge} link add manage type bridge")
        _ip(f"-n {bridge} link set manage up")
        management_gbps = case.management_times * case.cable_gbps
        for host, name in enumerate(names):
            _ip(f"-n {name} link set lo up")
            near, far = (name, "manage"), (bridge, f"port{host}")
            _cable(near, far, management_gbps)
            _ip(f"-n {bridge} link set port{host} master manage")
            _ip(f"-n {name} addr add 10.77.0.{host + 1}/24 dev manage")
        for number, ends in enumerate(SHAPES[case.shape]):
            _cable(*((names[host], f"cable{number}") for host in ends), case.cable_gbps)
            for last, host in enumerate(ends, start=1):
                address = f"10.77.{number + 1}.{last}/30"
                _ip(f"-n {names[host]} addr add {address} dev cable{number}")
        for name in names:
            _wait_for_carrier(name)
        yield names


def _cable(one: tuple[str, str], other: tuple[str, str], gbps: float) -> None:
    """A veth pair whose ends, (namespace, interface) each, send at most at that rate."""
    (near, near_name), (far, far_name) = one, other
    _ip(f"-n {near} link add {near_name} type veth peer {far_name} netns {far}")
    for namespace, name in (one, other):
        _ip(f"-n {namespace} link set {name} mtu {_MTU} up")
        with open_route(namespace) as route:
            index = route.link_lookup(ifname=name)[0]
            limit(route, index, gbps, _MTU, choose())


def _ip(arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments.split()], capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        raise ValueError(f"ip {arguments}: {done.stderr.strip()}")
    return done.stdout


def _wait_for_carrier(namespace: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while any(
        "state UP" not in line and "lo:" not in line
        for line in _ip(f"-n {namespace} -o link show").splitlines()
    ):
        if time.monotonic() > deadline:
            raise ValueError(f"{namespace}: an interface has no carrier")
        time.sleep(0.05)


def run_once(
    names: list[str], interfaces: str, folder: str, sizes: tuple[int, ...], *, verbose: bool
) -> Outcome:
    """The seconds of an all_reduce of each size, and the interfaces that the job uses."""

    def run(rank: int) -> Outcome:
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(len(names)),
            MASTER_ADDR="10.77.0.1",
            MASTER_PORT=str(_STORE_PORT),
            TOPOOPT_COST_MODEL="measure",
            XDG_CACHE_HOME=folder,
        )
        os.environ.pop("TOPOOPT_INTERFACES", None)
        if interfaces:
            os.environ["TOPOOPT_INTERFACES"] = interfaces
        enter_namespace("1:" + path_of(names[0]).removesuffix("0"))
        return _run_rank(sizes, verbose=verbose)

    outcomes = call_in_processes(len(names), run, limit_s=_LIMIT_S)
    return outcomes[0]


def _run_rank(sizes: tuple[int, ...], *, verbose: bool) -> Outcome:
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere:
        quiet = contextlib.nullcontext() if verbose else contextlib.redirect_stderr(nowhere)
        with quiet:
            dist.init_process_group("topoopt")
    used = sorted({port.interface or "" for port in backend.jobs[-1].wiring.ports})
    times = {size: _seconds(size, _CALLS[size]) for size in sizes}
    dist.barrier()
    dist.destroy_process_group()
    return times, used


def _seconds(size_bytes: int, calls: int) -> float:
    """Of an all_reduce on this rank, after one that is not counted."""
    tensor = torch.zeros(size_bytes // 4)
    begin = time.perf_counter()
    dist.all_reduce(tensor)
    longest = torch.tensor(time.perf_counter() - begin)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    seconds = []
    if size_bytes == _LARGE_BYTES:
        calls = max(1, min(calls, int(_LARGE_S / longest.item())))
    for _ in range(calls):
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - begin)
    if size_bytes == _SMALL_BYTES:  # ranks are late or early by parts of a call, not by blocks
        starts = range(0, calls, _BLOCK_CALLS)
        blocks = [statistics.mean(seconds[at : at + _BLOCK_CALLS]) for at in starts]
        return statistics.quantiles(blocks, n=10)[0]
    return statistics.median(seconds)


def measure(case: Case, sizes: tuple[int, ...], rounds: int, *, verbose: bool) -> dict[str, Times]:
    """The times of each choice, which take turns."""
    found = {name: Times() for name in CHOICES}
    with (
        hosts_of(case) as names,
        tempfile.TemporaryDirectory(prefix="topoopt-bench-") as folder,
    ):
        for _ in range(rounds):
            for name, interfaces in CHOICES.items():
                times, used = run_once(names, interfaces, folder, sizes, verbose=verbose)
                for size, seconds in times.items():
                    found[name].seconds.setdefault(size, []).append(seconds)
                found[name].used = used
    return found


def _line(case: Case, found: dict[str, Times]) -> str:
    cells = [f"{case.shape:<9} {case.management_times:>5g}"]
    for size in found["chosen"].seconds:
        median = {name: statistics.median(of.seconds[size]) for name, of in found.items()}
        best = min(seconds for name, seconds in median.items() if name != "chosen")
        cells += [f"{median[name] * _UNITS[size]:>10.0f}" for name in CHOICES]
        cells.append(f"{median['chosen'] / best:>7.2f}")
    return " ".join([*cells, ",".join(found["chosen"].used)])


def results_of(case: Case, found: dict[str, Times]) -> list[Result]:
    """The networks that are chosen, compared with the best choice by hand, for each size."""
    results = []
    for size in found["chosen"].seconds:
        median = {name: statistics.median(of.seconds[size]) for name, of in found.items()}
        chosen_s = median.pop("chosen")
        results.append(
            measured_now(
                f"all_reduce of {format_bytes(size)} on chosen networks, {case.shape}, "
                f"management network {case.management_times:g} times",
                chosen_s * _UNITS[size],
                "us" if size == _SMALL_BYTES else "ms",
                peer="best choice by hand",
                ratio=chosen_s / min(median.values()),
                ratio_of="time",
            )
        )
    return results


def benchmark(options: argparse.Namespace) -> None:
    """Prints the table, a line when its case is done."""
    require()
    header = " ".join(f"{name:>10}" for name in CHOICES) + " of best"
    sizes = (_SMALL_BYTES,) if options.small else (_SMALL_BYTES, _LARGE_BYTES)
    print(f"{'shape':<9} times {' '.join([header] * len(sizes))} used", flush=True)
    rows: list[dict[str, Any]] = []
    results: list[Result] = []
    for shape in options.shapes:
        for times in options.times:
            case = Case(shape, times, options.bandwidth)
            found = measure(case, sizes, options.rounds, verbose=options.verbose)
            print(_line(case, found), flush=True)
            results += results_of(case, found)
            rows.append(asdict(case) | {name: asdict(of) for name, of in found.items()})
            if options.json:
                text = json.dumps({"version": 1, "cases": rows}, indent=1)
                Path(options.json).write_text(text + "\n")
    if options.record:
        record(options.record, results)


def _multiples(text: str) -> list[float]:
    values = [float(part) for part in text.split(",")]
    if not all(value > 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text}: rates are greater than 0")
    return values


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=choice_of(list(SHAPES)), default=tuple(SHAPES))
    parser.add_argument("--times", type=_multiples, default=[0.1, 1.0, 10.0], metavar="X,X")
    parser.add_argument(
        "--bandwidth",
        type=parse_gbps,
        default="100Mbps",
        help="of the faster kind of network (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--small", action="store_true", help="only all_reduces of 16 bytes")
    parser.add_argument("--verbose", action="store_true", help="also the line of each job")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    add_record_option(parser)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: must be greater than 0")
    return exit_code_of("network_choice", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
