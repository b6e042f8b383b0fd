"""One link over libfabric beside one over our TCP and beside iperf3: bytes and processor time.

    python benchmarks/fabric_links.py
    python benchmarks/fabric_links.py --links tcp fabric:tcp --size 64MB --seconds 5 --rounds 5

Two servers on the loopback device, one rank and one link each; rank 0 sends messages to rank 1, of
which some are under way at once. iperf3 sends over one connection of the same device. Columns: GB/s
of what rank 1 has received, processor nanoseconds per byte (both ends, user and system), and GB/s
as part of iperf3's. Medians over rounds, in which all take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import Setting, loopback
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan.units import parse_bytes

LINKS = ("tcp", "fabric:tcp", "fabric:shm")
_PEER = "iperf3"
_UNDER_WAY = 4
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Rate:
    """`processor_s`: of both ends, user and system."""

    size_bytes: int
    seconds: float
    processor_s: float

    @property
    def gigabytes_per_s(self) -> float:
        return self.size_bytes / self.seconds / 1e9

    @property
    def processor_ns_per_byte(self) -> float:
        return self.processor_s / self.size_bytes * 1e9


def measure_link(setting: Setting, transport: str, size_bytes: int, seconds: float) -> Rate:
    """Messages of `size_bytes` from rank 0 to rank 1 for about `seconds`; raises RankError."""

    def run(rank: int) -> tuple[int, float, float]:
        os.environ["TOPOOPT_TRANSPORT"] = transport
        setting.become(rank)
        return _run_rank(rank, size_bytes, seconds)

    (_, _, sender_s), (received, elapsed, receiver_s) = call_in_processes(2, run, limit_s=_LIMIT_S)
    return Rate(received, elapsed, sender_s + receiver_s)


def _run_rank(rank: int, size_bytes: int, seconds: float) -> tuple[int, float, float]:
    """Bytes, seconds and processor seconds of this end."""
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    buffers = [torch.zeros(size_bytes, dtype=torch.uint8) for _ in range(_UNDER_WAY)]
    _exchange(rank, buffers)  # connects, and touches the memory
    started = time.monotonic()
    _exchange(rank, buffers)
    once = torch.tensor([time.monotonic() - started])
    dist.all_reduce(once, dist.ReduceOp.MAX)
    rounds = max(1, int(seconds / float(once)))
    dist.barrier()
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    for _ in range(rounds):
        _exchange(rank, buffers)
    elapsed = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    dist.barrier()
    dist.destroy_process_group()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return rounds * _UNDER_WAY * size_bytes, elapsed, used


def _exchange(rank: int, buffers: list[torch.Tensor]) -> None:
    call = dist.isend if rank == 0 else dist.irecv
    works = [call(buffer, 1 - rank) for buffer in buffers]
    for work in works:
        work.wait()


def measure_iperf3(seconds: float) -> Rate:
    """One connection over loopback; raises InputError where the program is missing or fails."""
    program = shutil.which(_PEER)
    if program is None:
        raise InputError("iperf3: is not installed (Debian: iperf3); leave it out with --no-peer")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen(
        [program, "-s", "-1", "-B", "127.0.0.1", "-p", port], stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _LIMIT_S
        while True:
            done = subprocess.run(
                [program, "-c", "127.0.0.1", "-p", port, "-t", f"{max(1, round(seconds))}", "-J"],
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            answer = json.loads(done.stdout)
            if "error" not in answer:
                break
            if "refused" not in answer["error"] or time.monotonic() > deadline:
                raise InputError(f"iperf3: {answer['error']}")
            time.sleep(0.05)  # it does not listen yet
    finally:
        server.kill()
        server.wait()
    received = answer["end"]["sum_received"]
    used = answer["end"]["cpu_utilization_percent"]
    share = (used["host_total"] + used["remote_total"]) / 100
    return Rate(received["bytes"], received["seconds"], share * received["seconds"])


def benchmark(options: argparse.Namespace) -> None:
    """Prints the table."""
    names = [*options.links, *([] if options.no_peer else [_PEER])]
    rates: dict[str, list[Rate]] = {name: [] for name in names}
    with loopback(2, 1, None) as setting:
        for _ in range(options.rounds):
            for name in names:
                rates[name].append(
                    measure_iperf3(options.seconds)
                    if name == _PEER
                    else measure_link(setting, name, options.size, options.seconds)
                )
    speeds = {n: statistics.median(r.gigabytes_per_s for r in found) for n, found in rates.items()}
    print(f"# messages of {options.size} bytes, {_UNDER_WAY} under way, {options.rounds} rounds")
    print(f"{'link':<12} {'GB/s':>8} {'ns/byte':>9} {'of iperf3':>10}")
    for name, found in rates.items():
        spent = statistics.median(rate.processor_ns_per_byte for rate in found)
        beside = f"{speeds[name] / speeds[_PEER]:.2f}" if _PEER in speeds else "-"
        print(f"{name:<12} {speeds[name]:>8.2f} {spent:>9.3f} {beside:>10}")


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The options; ends the process for bad ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--size", default="16MB", help="of a message (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="default: %(default)g")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)d")
    parser.add_argument("--no-peer", action="store_true", help="without iperf3")
    options = parser.parse_args(words)
    try:
        options.size = int(parse_bytes(options.size))
    except ValueError as error:
        parser.error(f"--size: {error}")
    if options.rounds < 1 or not options.seconds > 0:
        parser.error("--rounds and --seconds: must be greater than 0")
    return options


def main() -> int:
    """The exit code."""
    options = parse_arguments()
    return exit_code_of("fabric_links", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
