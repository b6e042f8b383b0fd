"""A small recommendation model: embedding tables on one rank each, dense layers on all of them.

As facebookresearch/dlrm does it: embeddings are looked up for the whole batch where their table is,
an all-to-all brings each rank those of its part of the batch, and DDP sums up the dense gradients.
"""

import argparse
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH, DENSE = 200, 8, 4


class AllToAll(torch.autograd.Function):
    """Blocks of the batch to the ranks that own them; gradients go back the same way."""

    @staticmethod
    def forward(ctx, embedded):
        embedded = embedded.contiguous()
        exchanged = torch.empty_like(embedded)
        dist.all_to_all_single(exchanged, embedded)
        return exchanged

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        returned = torch.empty_like(gradient)
        dist.all_to_all_single(returned, gradient)
        return returned


class Interaction(nn.Module):
    def __init__(self, tables: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.top = nn.Sequential(nn.Linear(WIDTH + tables * (tables + 1) // 2, 16), nn.ReLU())
        self.out = nn.Linear(16, 1)

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        features = torch.cat([bottom.unsqueeze(1), embedded], dim=1)
        products = features @ features.transpose(1, 2)
        first, second = torch.tril_indices(features.shape[1], features.shape[1], offset=-1)
        return self.out(self.top(torch.cat([bottom, products[:, first, second]], dim=1)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist-backend", default="gloo")
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    dist.init_process_group(arguments.dist_backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    part = arguments.batch_size // world
    torch.manual_seed(rank)
    table = nn.Embedding(ROWS, WIDTH)
    torch.manual_seed(1000)
    model = DistributedDataParallel(Interaction(world))
    dense_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse_optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    losses = []
    for step in range(arguments.steps):
        data = torch.Generator().manual_seed(step)
        dense = torch.rand(arguments.batch_size, DENSE, generator=data)
        indices = torch.randint(ROWS, (world, arguments.batch_size), generator=data)
        target = (dense.sum(dim=1) > DENSE / 2).float()
        mine = slice(rank * part, (rank + 1) * part)
        embedded = AllToAll.apply(table(indices[rank]).view(world, part, WIDTH))
        predicted = model(dense[mine], embedded.transpose(0, 1))
        loss = nn.functional.binary_cross_entropy_with_logits(predicted[:, 0], target[mine])
        dense_optimizer.zero_grad()
        sparse_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()
        sparse_optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / world)
    if rank == 0:
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump(losses, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
