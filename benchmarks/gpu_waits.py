"""What it is worth that wait() lets the stream wait, and not the host: FSDP2 on one GPU.

    python benchmarks/gpu_waits.py --ranks 2 --rounds 5

Layers are gathered and their gradients reduced over loopback while others compute, which needs a
host that goes on. Rounds with TOPOOPT_BLOCKING_WAIT=1 and 0 alternate; printed are the medians of
the slowest rank's seconds per iteration, and of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from functools import partial

import torch
import torch.distributed as dist
from rank_processes import call_in_processes, exit_code_of
from settings import Setting, loopback
from torch.distributed.fsdp import fully_shard

import torch_topoopt  # noqa: F401  (registers the backend)

LIMIT_S = 150.0
WIDTH = 2048
LAYERS = 12


def measured(setting: Setting, samples: int, rounds: int, rank: int) -> list[list[float]]:
    """Seconds per iteration with and without blocking waits, for each round."""
    setting.become(rank)
    dist.init_process_group("gloo")  # whose store all rounds share
    torch.cuda.set_device(0)
    found = []
    for _ in range(rounds):
        row = []
        for blocking in ("1", "0"):
            os.environ["TOPOOPT_BLOCKING_WAIT"] = blocking
            group = dist.new_group(backend="cpu:topoopt,cuda:topoopt")
            row.append(_iteration_s(group, samples))
            dist.destroy_process_group(group)
        found.append(row)
    dist.destroy_process_group()
    return found


def _iteration_s(group: dist.ProcessGroup, samples: int) -> float:
    mesh = dist.DeviceMesh.from_group(group, "cuda")
    model = torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(LAYERS))
    )
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    batch = torch.randn(samples, WIDTH, device="cuda")
    seconds = []
    for _ in range(6):
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(batch).square().mean().backward()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    slowest = torch.tensor(seconds[2:])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest.median())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=32768, help="a batch, of each rank")
    options = parser.parse_args()
    with loopback(options.ranks, min(2, options.ranks - 1), None) as setting:
        function = partial(measured, setting, options.samples, options.rounds)
        rows = call_in_processes(options.ranks, function, limit_s=LIMIT_S)[0]
    blocking, streams = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(row[0] / row[1] for row in rows)
    print(f"host waits {blocking:.4f} s, stream waits {streams:.4f} s, ratio {ratio:.3f}")


if __name__ == "__main__":
    sys.exit(exit_code_of("gpu_waits", main))
