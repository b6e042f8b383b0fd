"""Ways to move the bytes of one TCP connection: plain calls, MSG_ZEROCOPY, io_uring.

    python benchmarks/socket_ways.py
    sudo .venv/bin/python benchmarks/socket_ways.py --on veth
    python benchmarks/socket_ways.py --ways calls,zerocopy --rounds 9 -J ways.json

Two processes without frames or an event loop, over one machine's loopback device, or a veth pair
between two network namespaces. Both go through 64 MiB of memory again and again; a send has 512
KiB, a receive takes up to 1 MiB and wakes up for 256 KiB, as fast links do. Rounds of all ways
alternate; numbers are medians.

  calls             sendmsg and recv: what links do
  zerocopy          sends with MSG_ZEROCOPY; memory is used again when the error queue says so
  uring             one IORING_OP_SEND and one IORING_OP_RECV at a time
  uring-zerocopy    IORING_OP_SEND_ZC in place of the first, whose second completion frees memory
  multishot         IORING_OP_RECV multishot, into a pool of buffers that the kernel chooses from
  multishot-placed  the same, and a copy from there to where the bytes belong

`sender` and `receiver`: processor time, user and system, over the bytes that have arrived.
`copied`: the part of sends without copy of which the kernel says that it has copied their bytes
after all. The last line is what the kernel answers to who wants to receive without copy
(IORING_OP_RECV_ZC) from the first queue of this interface. The program is compiled at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from links import PORT, both_ends

from harness.direct_fabric import make_plan
from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import Setting, loopback, planned_fabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.fabric.wiring import Wiring
from torch_topoopt.launcher.errors import InputError

_SOURCE = Path(__file__).with_suffix(".cc")
_LIMIT_S = 120.0
_NOMINAL_GBPS = 10.0  # in the plan, which has to name a rate; nothing limits the cable

# Of the sender and of the receiver.
WAYS = {
    "calls": ("calls", "calls"),
    "zerocopy": ("zerocopy", "calls"),
    "uring": ("uring", "uring"),
    "uring-zerocopy": ("uring-zerocopy", "uring"),
    "multishot": ("uring", "multishot"),
    "multishot-placed": ("uring", "multishot-placed"),
}


@dataclass(frozen=True)
class Moved:
    """What one run has moved. `copied`: a part of what was to be sent without copy; None: all is
    copied."""

    bytes_per_s: float
    sender_ns_per_byte: float
    receiver_ns_per_byte: float
    copied: float | None


def build(folder: str) -> str:
    """The program; raises InputError where there is no compiler, or old headers of the kernel."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler.split()[0]) is None:
        raise InputError(f"{compiler} is not installed (Debian: apt install g++)")
    program = f"{folder}/socket_ways"
    command = [*compiler.split(), "-std=c++20", "-O2", "-o", program, str(_SOURCE)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if built.returncode != 0:
        raise InputError(f"{_SOURCE.name}: {built.stderr.strip()}")
    return program


def _printed(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if ended.returncode != 0:
        raise InputError(ended.stderr.strip())
    return ended.stdout.strip()


def move(setting: Setting, program: str, way: str, seconds: float) -> Moved:
    """One connection, for so many seconds."""

    def run(end: int, address: str) -> list[float]:
        verb = ("send", "receive")[end]
        limit = [] if end else [str(seconds)]
        printed = _printed(program, verb, WAYS[way][end], address, str(PORT), *limit)
        return [float(word) for word in printed.split()]

    sender, receiver = both_ends(setting, run)
    moved_bytes, took_s, received_cpu_s = receiver
    reported, copied = sender[3:]
    return Moved(
        moved_bytes / took_s,
        sender[2] / moved_bytes * 1e9,
        received_cpu_s / moved_bytes * 1e9,
        copied / reported if reported else None,
    )


def zero_copy_receive(setting: Setting, program: str) -> str:
    """The sender's interface, and what the kernel answers for it."""

    def ask(_: int) -> str:
        setting.become(0)
        interface = "lo"
        if setting.fabric is not None:
            wiring = Wiring.load(setting.environment["TOPOOPT_WIRING"])
            address = wiring.by_port()[0, 0].address
            interface = _printed("ip", "-o", "addr", "show", "to", address).split()[1]
        return f"{interface}: {_printed(program, 'zero-copy-receive', interface)}"

    (answer,) = call_in_processes(1, ask, limit_s=_LIMIT_S)
    return answer


def line(way: str, runs: list[Moved]) -> str:
    def median(field: str) -> float:
        return statistics.median(getattr(run, field) for run in runs)

    sender, receiver = median("sender_ns_per_byte"), median("receiver_ns_per_byte")
    both = statistics.median(run.sender_ns_per_byte + run.receiver_ns_per_byte for run in runs)
    copied = "" if runs[0].copied is None else f"{median('copied'):8.0%}"
    rate = median("bytes_per_s") / 1e9
    return f"{way:<16} {rate:6.2f} {sender:8.3f} {receiver:8.3f} {both:8.3f} {copied}".rstrip()


def benchmark(options: argparse.Namespace) -> None:
    if options.on == "loopback":
        place = loopback(2, 1, None)
    else:
        place = planned_fabric(make_plan(2, 1, _NOMINAL_GBPS), NetnsOptions(mtu=options.mtu))
    runs: dict[str, list[Moved]] = {way: [] for way in options.ways}
    with tempfile.TemporaryDirectory(prefix="topoopt-bench-") as folder, place as setting:
        program = build(folder)
        for _ in range(options.rounds):
            for way in options.ways:
                runs[way].append(move(setting, program, way, options.seconds))
        answer = zero_copy_receive(setting, program)
    print(f"# one connection, {options.on}; processor time in ns a byte")
    print(f"{'':<16} {'GB/s':>6} {'sender':>8} {'receiver':>8} {'both':>8} {'copied':>8}")
    for way, list_ in runs.items():
        print(line(way, list_))
    print(f"# zero-copy receive on {answer}")
    if options.json:
        samples = {way: [asdict(run) for run in list_] for way, list_ in runs.items()}
        document = {"version": 1, "on": options.on, "runs": samples, "zero_copy_receive": answer}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")


def _ways(text: str) -> list[str]:
    ways = text.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(WAYS)}")
    return ways


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", choices=("loopback", "veth"), default="loopback")
    parser.add_argument("--ways", type=_ways, default=list(WAYS), metavar="WAY,WAY")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mtu", type=int, default=1500, help="of the veth pair")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    options = parser.parse_args()
    return exit_code_of("socket_ways", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
