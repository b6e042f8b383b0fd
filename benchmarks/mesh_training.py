"""Trains on a mesh of data and tensor groups, as each rank of `topoopt run`.

    topoopt run --fabric netns --servers 8 ... benchmarks/mesh_training.py --tensor 4

Tensor groups have consecutive ranks. They divide the layers, whose results are added by AllReduces;
data groups shard parameters and gradients (FSDP2) by AllGathers and ReduceScatters. With experts,
all ranks exchange equal shares of the last layer's results by an all-to-all, apply an expert of
their own to them, and exchange the results back.
`moving_mesh_measured.py` compares circuits that move with those that stay. Rank 0 writes its losses
and the seconds of its steps to --output.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

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


class ExpertExchange(torch.autograd.Function):
    """An all-to-all of equal shares of all ranks; its gradient takes the same way back."""

    @staticmethod
    def forward(context: Any, samples: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(samples)
        dist.all_to_all_single(received, samples.contiguous())
        return received

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return ExpertExchange.forward(context, gradient)


class Expert(nn.Module):
    """The expert of this rank, for its share of the samples of all ranks; it is not trained."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(100 + dist.get_rank())
        self.weight = torch.randn(hidden, hidden, generator=generator) / hidden**0.5

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        there: torch.Tensor = ExpertExchange.apply(samples)
        back: torch.Tensor = ExpertExchange.apply(torch.tanh(there @ self.weight))
        return samples + back


def train(
    tensor: int,
    hidden: int,
    batch: int,
    steps: int,
    backend: str = "topoopt",
    *,
    experts: bool = False,
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
    expert = Expert(hidden) if experts else nn.Identity()
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(mesh["data"].get_local_rank())
    losses, seconds = [], []
    for _ in range(steps):
        samples = torch.randn(batch, hidden, generator=generator)
        dist.barrier()
        began = time.perf_counter()
        loss = (expert(model(samples)) - samples.roll(1, 1)).square().mean()
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
