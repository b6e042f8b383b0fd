"""Bytes per second and processor time per byte of one link, beside iperf3 with as many connections.

    python benchmarks/links.py
    sudo .venv/bin/python benchmarks/links.py --on veth
    python benchmarks/links.py --connections 1,4 --message-bytes 16M --rounds 5 -J links.json

Two hosts with one cable that has no rate: one machine's loopback device, or a veth pair between two
network namespaces. Ours: rank 0 sends messages to rank 1, of which four are under way. iperf3: its
client sends for as long. Rounds of both alternate; `x` is how many times as fast ours is, the
median of the rounds' ratios. `cpu` is processor time of both ends together, user and system, over
the bytes that have arrived. `threads` is ours with TOPOOPT_LINK_THREADS=1, `zerocopy` ours with
TOPOOPT_ZERO_COPY=always, which goes on though the kernel copies on this machine.

`socket` is the least that the same processor needs for it: a bare loop of send and one of recv, 128
KiB a call, which take no heed of what the bytes are. They send and fill the same 128 KiB again and
again, as iperf3 does, which stay in the processor's cache; `messages` is the same loop through as
many bytes as our messages under way have, which do not. `copy` is a copy in memory by one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from collectives import parse_size

from harness.direct_fabric import make_plan
from harness.rank_processes import call_in_processes, exit_code_of
from harness.results import Result, add_record_option, measured_now, record
from harness.settings import Setting, loopback, planned_fabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan.units import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LIMIT_S = 120.0
_UNDER_WAY = 4  # messages of ours at a time
_COPIED_BYTES = 256 << 20
_PIECE_BYTES = 128 << 10  # iperf3's own
_SERVER_STARTS_S = 5.0
PORT = 5201
# Of ours, by name.
_VARIABLES = {
    "ours": {"TOPOOPT_LINK_THREADS": "0", "TOPOOPT_ZERO_COPY": "0"},
    "threads": {"TOPOOPT_LINK_THREADS": "1", "TOPOOPT_ZERO_COPY": "0"},
    "zerocopy": {"TOPOOPT_LINK_THREADS": "0", "TOPOOPT_ZERO_COPY": "always"},
}
_RECORDED_AS = {
    "ours": "link",
    "threads": "link with threads",
    "zerocopy": "zero-copy link",
    "iperf3": "iperf3",
    "socket": "bare socket through 128 KiB",
    "messages": "bare socket through all messages",
    "copy": "copy in memory",
}
_NOMINAL_GBPS = 10.0  # in the plan, which has to name a rate; nothing limits the cable


@dataclass(frozen=True)
class Sample:
    """What one run has moved: payload bytes, and processor seconds of both ends."""

    moved_bytes: float
    seconds: float
    cpu_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.moved_bytes / self.seconds

    @property
    def cpu_ns_per_byte(self) -> float:
        return self.cpu_s / self.moved_bytes * 1e9


def _cpu_s(who: int = resource.RUSAGE_SELF) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


# ---- ours --------------------------------------------------------------------------------------


def _exchange(rank: int, tensors: list[torch.Tensor], count: int) -> None:
    works: list[dist.Work] = []
    for number in range(count):
        if len(works) == len(tensors):
            works.pop(0).wait()
        tensor = tensors[number % len(tensors)]
        work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
        assert work is not None
        works.append(work)
    for work in works:
        work.wait()


def ours(
    setting: Setting,
    connections: int,
    message_bytes: int,
    seconds: float,
    variables: Mapping[str, str],
) -> Sample:
    """Messages from rank 0 to rank 1 for about so many seconds, with those variables."""

    def run(rank: int) -> tuple[int, float, float]:
        os.environ["TOPOOPT_CONNECTIONS"] = str(connections)
        os.environ.update(variables)
        torch.set_num_threads(1)
        setting.become(rank)
        dist.init_process_group("topoopt")
        tensors = [torch.ones(message_bytes, dtype=torch.uint8) for _ in range(_UNDER_WAY)]
        count = 2 * _UNDER_WAY
        begin = time.perf_counter()
        _exchange(rank, tensors, count)  # warms up, and says how many are enough
        each = torch.tensor([(time.perf_counter() - begin) / count], dtype=torch.float64)
        dist.broadcast(each, 1)
        count = max(2 * _UNDER_WAY, round(seconds / each.item()))
        dist.barrier()
        cpu, begin = _cpu_s(), time.perf_counter()
        _exchange(rank, tensors, count)
        took, used = time.perf_counter() - begin, _cpu_s() - cpu
        dist.barrier()
        dist.destroy_process_group()
        return count, took, used

    sender, receiver = call_in_processes(2, run, limit_s=_LIMIT_S)
    return Sample(receiver[0] * message_bytes, receiver[1], sender[2] + receiver[2])


# ---- peers and limits --------------------------------------------------------------------------


def receiver_address(setting: Setting) -> str:
    """Of the port of rank 1."""
    wiring = Wiring.load(setting.environment["TOPOOPT_WIRING"])
    return wiring.by_port()[1, 0].address


def both_ends(setting: Setting, run: Callable[[int, str], Any]) -> list[Any]:
    """[run(0, address), run(1, address)], of which the second one listens there for the first."""
    address = receiver_address(setting)
    listens = multiprocessing.get_context("fork").Event()

    def end(number: int) -> Any:
        setting.become(number)
        if number == 1:
            threading.Thread(target=_note_listener, args=(address, listens), daemon=True).start()
        elif not listens.wait(_SERVER_STARTS_S):
            raise InputError(f"nobody listens at {address}:{PORT} after {_SERVER_STARTS_S:g} s")
        return run(number, address)

    return call_in_processes(2, end, limit_s=_LIMIT_S)


def two_ends(setting: Setting, run: Callable[[int, str], tuple[float, float, float]]) -> Sample:
    """both_ends() of ends that return bytes, seconds and their processor seconds."""
    sender, receiver = both_ends(setting, run)
    return Sample(receiver[0], receiver[1], sender[2] + receiver[2])


def _note_listener(address: str, listens: Any) -> None:
    """By the system's table: a connection that tries it would be the only one that is served."""
    packed = "".join(f"{byte:02X}" for byte in reversed(socket.inet_aton(address)))
    wanted = f"{packed}:{PORT:04X} 00000000:0000 0A"
    deadline = time.monotonic() + _SERVER_STARTS_S
    while wanted not in Path("/proc/thread-self/net/tcp").read_text():
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)
    listens.set()


def iperf3(setting: Setting, connections: int, seconds: float) -> Sample:
    """iperf3's client and its server, which takes one test."""

    def run(end: int, address: str) -> tuple[float, float, float]:
        whole_s = max(1, math.ceil(seconds))  # it drops a fraction, and goes on for ever at 0
        sending = ["-c", address, "-P", str(connections), "-t", str(whole_s)]
        receiving = ["-s", "-1", "-B", address]
        command = ["iperf3", "-J", "-p", str(PORT), *(receiving if end else sending)]
        cpu = _cpu_s(resource.RUSAGE_CHILDREN)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        used = _cpu_s(resource.RUSAGE_CHILDREN) - cpu
        result = json.loads(ended.stdout or "{}")
        if ended.returncode or "error" in result:
            raise InputError(f"iperf3: {result.get('error', ended.stderr.strip())}")
        received = result["end"]["sum_received"]
        return received["bytes"], received["seconds"], used

    return two_ends(setting, run)


def bare_socket(setting: Setting, seconds: float, memory_bytes: int = _PIECE_BYTES) -> Sample:
    """One process that sends, one that receives: no frames, nobody to wake. Both go round and round
    through so much memory."""

    def run(end: int, address: str) -> tuple[float, float, float]:
        memory = memoryview(bytearray(memory_bytes))
        pieces = itertools.cycle(
            [memory[at : at + _PIECE_BYTES] for at in range(0, memory_bytes, _PIECE_BYTES)]
        )
        moved = 0
        if end == 0:
            with socket.create_connection((address, PORT)) as connection:
                cpu, begin = _cpu_s(), time.perf_counter()
                while time.perf_counter() < begin + seconds:
                    moved += connection.send(next(pieces))
        else:
            with socket.create_server((address, PORT)) as server:
                connection, _ = server.accept()
            with connection:
                cpu, begin = _cpu_s(), time.perf_counter()
                while count := connection.recv_into(next(pieces)):
                    moved += count
        return moved, time.perf_counter() - begin, _cpu_s() - cpu

    return two_ends(setting, run)


def memory_copy(seconds: float) -> Sample:
    """What one core copies."""
    torch.set_num_threads(1)
    source, target = (torch.ones(_COPIED_BYTES, dtype=torch.uint8) for _ in range(2))
    moved, cpu, begin = 0, _cpu_s(), time.perf_counter()
    while time.perf_counter() < begin + seconds:
        target.copy_(source)
        moved += _COPIED_BYTES
    return Sample(moved, time.perf_counter() - begin, _cpu_s() - cpu)


# ---- the table ---------------------------------------------------------------------------------


def measure(setting: Setting, options: argparse.Namespace) -> dict[str, list[Sample]]:
    """The samples of all rounds by name: "ours 4", "threads 4", "iperf3 4", "socket", ..."""
    samples: dict[str, list[Sample]] = {}
    wanted = {"ours": True, "threads": options.link_threads, "zerocopy": options.zero_copy}
    for _ in range(options.rounds):
        for connections in options.connections:
            for name in (name for name, is_wanted in wanted.items() if is_wanted):
                own = ours(
                    *(setting, connections, options.message_bytes, options.seconds),
                    _VARIABLES[name],
                )
                samples.setdefault(f"{name} {connections}", []).append(own)
            peer = iperf3(setting, connections, options.seconds)
            samples.setdefault(f"iperf3 {connections}", []).append(peer)
        samples.setdefault("socket", []).append(bare_socket(setting, options.seconds))
        memory_bytes = _UNDER_WAY * options.message_bytes
        large = bare_socket(setting, options.seconds, memory_bytes)
        samples.setdefault("messages", []).append(large)
    samples["copy"] = [memory_copy(options.seconds)]
    return samples


def line(name: str, samples: list[Sample], peers: list[Sample] | None) -> str:
    rate = statistics.median(sample.bytes_per_s for sample in samples)
    cpu = statistics.median(sample.cpu_ns_per_byte for sample in samples)
    text = f"{name:<10} {rate / 1e9:7.3f} GB/s {rate * 8e-9:7.2f} Gb/s {cpu:8.3f} ns/byte"
    if peers is None:
        return text
    ratios = [a.bytes_per_s / b.bytes_per_s for a, b in zip(samples, peers, strict=True)]
    return f"{text}  x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def results_to_record(place: str, samples: dict[str, list[Sample]]) -> list[Result]:
    """Speed and processor time of everything that was measured."""
    found = []
    for name, own in samples.items():
        kind, _, connections = name.partition(" ")
        what = f"{_RECORDED_AS[kind]}, {place}"
        if connections:
            what += f", {counted(int(connections), 'connection')}"
        rate = statistics.median(sample.bytes_per_s for sample in own) / 1e9
        cpu = statistics.median(sample.cpu_ns_per_byte for sample in own)
        if kind in _VARIABLES:
            peers = samples[f"iperf3 {connections}"]
            ratios = [a.bytes_per_s / b.bytes_per_s for a, b in zip(own, peers, strict=True)]
            found.append(
                measured_now(
                    what,
                    rate,
                    "GB/s",
                    peer="iperf3",
                    ratio=statistics.median(ratios),
                    ratio_range=(min(ratios), max(ratios)),
                    ratio_of="speed",
                )
            )
        else:
            found.append(measured_now(what, rate, "GB/s"))
        found.append(measured_now(f"{what}: processor time", cpu, "ns/byte"))
    return found


def benchmark(options: argparse.Namespace) -> None:
    if shutil.which("iperf3") is None:
        raise InputError("iperf3 is not installed (Debian: apt install iperf3)")
    if options.on == "loopback":
        place = loopback(2, 1, None)
    else:
        place = planned_fabric(make_plan(2, 1, _NOMINAL_GBPS), NetnsOptions(mtu=options.mtu))
    with place as setting:
        print(f"# one cable, {options.on}; messages of {options.message_bytes} bytes")
        samples = measure(setting, options)
    for name, list_ in samples.items():
        own, _, number = name.partition(" ")
        peers = samples[f"iperf3 {number}"] if own in _VARIABLES else None
        print(line(name, list_, peers))
    if options.json:
        runs = {name: [asdict(sample) for sample in list_] for name, list_ in samples.items()}
        document = {"version": 1, "on": options.on, "runs": runs}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    if options.record:
        place_text = f"messages of {format_bytes(options.message_bytes)}, {options.on}"
        record(options.record, results_to_record(place_text, samples))


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: connections are at least 1")
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", choices=("loopback", "veth"), default="loopback")
    parser.add_argument("--connections", type=_numbers, default=[1, 4], metavar="N,N")
    parser.add_argument("--message-bytes", type=parse_size, default=16 << 20, metavar="SIZE")
    parser.add_argument(
        "--link-threads", action="store_true", help="also ours with threads of each connection"
    )
    parser.add_argument(
        "--zero-copy", action="store_true", help="also ours that sends from where bytes lie"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mtu", type=int, default=1500, help="of the veth pair")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    add_record_option(parser)
    options = parser.parse_args()
    return exit_code_of("links", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
