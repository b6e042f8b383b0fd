"""Collectives on tensors of a GPU, over emulated cables: NCCL over the plugin, NCCL over sockets,
and the backend "topoopt", with all ranks on one GPU.

    sudo python benchmarks/gpu_collectives.py --servers 4 --degree 2 --bandwidth 1Gbps -J gpu.json

Servers are network namespaces whose cables have the rate (`topoopt run --fabric netns`). What a
rank of a ring receives per second, as a share of its links' rate, is beside the median time.
NCCL over sockets needs a switch: it gets the network that joins all namespaces, which has no rate;
on the cables alone it ends in an error, which is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = (8, 64 << 10, 1 << 20, 16 << 20)
WAYS = {
    "topoopt": ({}, ()),
    "nccl + plugin": ({}, ("--nccl",)),
    "nccl + plugin + ring": ({"NCCL_ALGO": "Ring"}, ("--nccl",)),
    "nccl sockets": (
        {"GPU_COLLECTIVES_NET": "Socket", "NCCL_SOCKET_IFNAME": "management"},
        ("--nccl",),
    ),
    "nccl sockets on cables": (
        {"GPU_COLLECTIVES_NET": "Socket", "NCCL_SOCKET_IFNAME": "^lo,management"},
        ("--nccl",),
    ),
}
LIMIT_S = 120.0  # of one way
WANTED_S = 1.0  # of the calls of one size


def rank_main(output: Path) -> None:
    """One rank: `output` gets the rows, of rank 0."""
    import torch
    import torch.distributed as dist

    if net := os.environ.get("GPU_COLLECTIVES_NET"):  # after the launcher, which sets the plugin's
        os.environ.update(NCCL_NET=net, NCCL_NET_PLUGIN="none", NCCL_TUNER_PLUGIN="none")
    torch.cuda.set_device(0)
    dist.init_process_group("topoopt" if "TOPOOPT_PLAN" in os.environ else "nccl")
    rows = []
    for size_bytes in SIZES:
        tensor = torch.ones(max(1, size_bytes // 4), device="cuda")

        def call(tensor: torch.Tensor = tensor) -> float:
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            torch.cuda.synchronize()
            return time.perf_counter() - begin

        first = torch.tensor([call(), call()], device="cuda")  # the first makes connections
        dist.all_reduce(first, op=dist.ReduceOp.MAX)
        calls = min(50, max(5, int(WANTED_S / float(first[1]))))
        seconds = torch.tensor([call() for _ in range(calls)], device="cuda")
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        torch.testing.assert_close(tensor, torch.ones_like(tensor))  # 1 / ranks is rounded
        rows.append((size_bytes, statistics.median(seconds.tolist()), calls))
    if dist.get_rank() == 0:
        output.write_text(json.dumps(rows))
    dist.destroy_process_group()


def measure(name: str, options: argparse.Namespace, folder: Path) -> list[list[float]] | str:
    """Rows (bytes, median seconds, calls) of one way, or the last line of its error."""
    variables, more = WAYS[name]
    output = folder / f"{name}.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "MASTER_"))}
    command = [
        *(sys.executable, "-m", "torch_topoopt.launcher.main", "run", "--no-measure-steps"),
        *("--servers", str(options.servers), "--degree", str(options.degree), "--fabric", "netns"),
        *("--bandwidth", options.bandwidth, "--model", "none", *more),
        *("--run-dir", str(folder / name.replace(" ", "-")), __file__, "--rank", str(output)),
    ]
    try:
        done = subprocess.run(
            command,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=options.limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not over after {options.limit_s:.0f} s"
    if done.returncode:
        raised = re.findall(r"\w+Error: .*", done.stderr)  # by the first rank that says why
        return (raised or done.stderr.splitlines()[-1:] or ["no message"])[0]
    return json.loads(output.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--degree", type=int, default=2)
    parser.add_argument("--bandwidth", default="1Gbps")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, with commas")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of one way")
    parser.add_argument("-J", "--json-file", type=Path)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(options.rank)
        return 0
    from torch_topoopt.plan.units import parse_gbps

    gbps = parse_gbps(options.bandwidth)
    found: dict[str, Any] = {}
    print(f"{'':>24} {'bytes':>10} {'median_us':>12} {'of links':>9} {'calls':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.ways.split(","):
            found[name] = measure(name, options, Path(folder))
            if isinstance(found[name], str):
                print(f"{name:>24} {found[name]}", flush=True)
                continue
            for size_bytes, seconds, calls in found[name]:
                received = 2 * (options.servers - 1) / options.servers * size_bytes
                share = received / seconds / (options.degree * gbps * 1e9 / 8)
                print(
                    f"{name:>24} {size_bytes:>10} {seconds * 1e6:>12.1f} {share:>9.3f} {calls:>6}",
                    flush=True,
                )
    if options.json_file:
        options.json_file.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
