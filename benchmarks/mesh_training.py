"""Trains on a mesh of data and tensor groups, as each rank of `topoopt run`.

    topoopt run --fabric netns --servers 8 ... benchmarks/mesh_training.py --tensor 4

Tensor groups have consecutive ranks. They divide the layers, whose results are added by AllReduces;
data groups shard parameters and gradients (FSDP2) by AllGathers and ReduceScatters.
`moving_mesh_measured.py` compares circuits that move with those that stay. Rank 0 writes its losses
and the seconds of its steps to --output.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

LAYERS = 2


def train(
    tensor: int, hidden: int, batch: int, steps: int, backend: str = "topoopt"
) -> tuple[list[float], list[float]]:
    """This rank's losses, and the seconds of each step. Tensor groups have `tensor` ranks."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    shape = (dist.get_world_size() // tensor, tensor)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(
        *(
            nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
            for _ in range(LAYERS)
        )
    )
    for block in model:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(mesh["data"].get_local_rank())
    losses, seconds = [], []
    for _ in range(steps):
        samples = torch.randn(batch, hidden, generator=generator)
        dist.barrier()
        began = time.perf_counter()
        loss = (model(samples) - samples.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    return losses, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensor", type=int, default=2, metavar="N", help="ranks of a group")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64, help="samples of a data group's member")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--output", required=True, metavar="FILE")
    options = parser.parse_args()
    losses, seconds = train(options.tensor, options.hidden, options.batch, options.steps)
    if os.environ["RANK"] == "0":
        Path(options.output).write_text(json.dumps({"losses": losses, "seconds": seconds}))


if __name__ == "__main__":
    main()
