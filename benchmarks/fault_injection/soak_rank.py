"""A rank of soak.py: trains a small model with DistributedDataParallel, the same in every run.

    topoopt run ... benchmarks/fault_injection/soak_rank.py --seconds S | --steps N  RESULT

RESULT gets the number of steps and a digest of the final weights, which all ranks have alike.
Gradients are rounded to whole numbers of a small unit, whose sums float32 has exactly: they do not
depend on the order of additions, which changes with the rings that are left.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

_UNITS = 1 << 16  # of a gradient that are 1
_MOST = 1 << 19  # units of a gradient of one rank; the sum of 32 ranks has 24 bits
_FEATURES, _HIDDEN, _CLASSES, _BATCH = 64, 256, 10, 16


def build() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(_FEATURES, _HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(_HIDDEN, _HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(_HIDDEN, _CLASSES),
    )


def sum_exactly(world: int, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of DistributedDataParallel for the mean of rounded gradients."""
    units = bucket.buffer().mul(_UNITS).round_().clamp_(-_MOST, _MOST)
    summed = dist.all_reduce(units, async_op=True).get_future()
    return summed.then(lambda done: done.value()[0].div_(_UNITS * world))


def train_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> None:
    torch.manual_seed(step * 1009 + rank)  # for the samples and the dropout
    samples = torch.randn(_BATCH, _FEATURES)
    labels = samples[:, :_CLASSES].argmax(1)
    optimizer.zero_grad()
    cross_entropy(model(samples), labels).backward()
    optimizer.step()


def digest(model: torch.nn.Module) -> str:
    parts = hashlib.sha256()
    for parameter in model.parameters():
        parts.update(parameter.detach().numpy().tobytes())
    return parts.hexdigest()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    until = parser.add_mutually_exclusive_group(required=True)
    until.add_argument("--seconds", type=float)
    until.add_argument("--steps", type=int)
    parser.add_argument("result", type=Path)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(build())
    model.register_comm_hook(world, sum_exactly)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dist.barrier()
    if rank == 0:
        Path(os.environ["READY"]).touch()
    limit = time.monotonic() + (arguments.seconds or 0.0)
    over = torch.zeros(1, dtype=torch.int64)
    step = 0
    while not over[0]:
        train_step(model, optimizer, rank, step)
        step += 1
        over[0] = step == arguments.steps if arguments.steps else time.monotonic() > limit
        dist.all_reduce(over, dist.ReduceOp.MAX)
    of_rank: list[tuple[int, str]] = [(0, "")] * world
    dist.all_gather_object(of_rank, (step, digest(model)))
    assert len(set(of_rank)) == 1, f"ranks have other steps or weights: {of_rank}"
    if rank == 0:
        text = json.dumps({"steps": step, "digest": of_rank[0][1]})
        arguments.result.write_text(text, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
