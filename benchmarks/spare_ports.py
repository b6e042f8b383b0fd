"""AllReduce while a port dies for good, on emulated hosts with an optical switch, as root.

    sudo .venv/bin/python benchmarks/spare_ports.py
    sudo .venv/bin/python benchmarks/spare_ports.py -n 8 -d 4 --limit 5

Rank 0 takes its port 0 down and leaves it down. Without spare ports, the cable stays lost.

phase    planned: before the fault; lost: without the cable; spare: over its spare ports
calls    AllReduces in the phase
Gb/s     median of their bus bandwidth, 2 (n - 1) / n bytes / time
after    seconds from the fault to the first call of the phase
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from torch_topoopt.environment import SPARE_VARIABLE

SPARES = (1, 0)  # of each server
SCRIPT = """
import json
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from torch_topoopt.runtime import job

size, before_s, after_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("topoopt")
rank = dist.get_rank()
tensor = torch.ones(size // 4)
rows, began, cut_at = [], time.monotonic(), None
while True:
    started = time.monotonic()
    dist.all_reduce(tensor)
    seconds = time.monotonic() - started
    lost = torch.tensor([len(job.jobs[-1].session.lost_cables())])
    dist.all_reduce(lost, dist.ReduceOp.MAX)
    tensor.fill_(1.0)
    now = time.monotonic()
    over = torch.tensor([int(cut_at is not None and now > cut_at + after_s)])
    if rank == 0:
        rows.append((started - (cut_at or now), seconds, bool(lost), cut_at is not None))
        if cut_at is None and now > began + before_s:
            subprocess.run(["ip", "link", "set", "port0", "down"], check=True)
            cut_at = time.monotonic()
    dist.broadcast(over, 0)
    if over:
        break
if rank == 0:
    with open("rows.json", "w") as file:
        json.dump(rows, file)
dist.destroy_process_group()
"""


def phases(rows: list[tuple[float, float, bool, bool]]) -> dict[str, list[tuple[float, float]]]:
    """Phase -> seconds since the fault, and of each call; calls in which it changed are omitted."""
    found: dict[str, list[tuple[float, float]]] = {"planned": [], "lost": [], "spare": []}
    was_lost = False
    for since_s, seconds, lost, cut in rows:
        was_lost |= lost
        if not cut:
            found["planned"].append((0.0, seconds))
        elif lost:
            found["lost"].append((since_s, seconds))
        elif was_lost:
            found["spare"].append((since_s, seconds))
    return {name: calls[1:] if name != "planned" else calls for name, calls in found.items()}


def measure(options: argparse.Namespace, spares: int) -> dict[str, list[tuple[float, float]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        command = [
            *(sys.executable, "-m", "torch_topoopt.launcher.main", "run", "--fabric", "netns")
        ]
        command += ["--servers", str(options.servers), "--degree", str(options.degree)]
        command += ["--bandwidth", options.bandwidth, "--model", "none", "--switch-delay", "0.025"]
        command += ["--spare-ports", str(spares), "script.py", str(options.bytes)]
        command += [str(options.before), str(options.after)]
        environment = {**os.environ, SPARE_VARIABLE: str(options.limit)}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return phases(json.loads((folder / "rows.json").read_text()))


def run(options: argparse.Namespace) -> None:
    print(f"{'spares':>8}{'phase':>10}{'calls':>8}{'Gb/s':>9}{'after':>8}")
    bus_bytes = 2 * (options.servers - 1) / options.servers * options.bytes
    for spares in SPARES:
        for phase, calls in measure(options, spares).items():
            if not calls:
                continue
            gbps = bus_bytes * 8e-9 / statistics.median(seconds for _, seconds in calls)
            print(f"{spares:8}{phase:>10}{len(calls):8}{gbps:9.3f}{calls[0][0]:8.1f}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--servers", type=int, default=4, help="default: 4")
    parser.add_argument("-d", "--degree", type=int, default=2, help="default: 2")
    parser.add_argument("--bandwidth", default="100Mbps", help="of a link (default: 100Mbps)")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="of a call (default: 1 MB)")
    parser.add_argument("--limit", type=float, default=10.0, help="TOPOOPT_SPARE_AFTER_S")
    parser.add_argument("--before", type=float, default=8.0, help="seconds until the fault")
    parser.add_argument("--after", type=float, default=30.0, help="seconds from then on")
    return parser.parse_args()


if __name__ == "__main__":
    run(parse_arguments())
