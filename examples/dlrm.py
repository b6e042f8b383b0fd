"""Trains a small DLRM on clicks made from a seed, as its job's plan says.

    topoopt run --servers 8 --degree 4 --bandwidth 20Mbps --strategy-space full examples/dlrm.py
    topoopt run --servers 8 --degree 4 --bandwidth 20Mbps examples/dlrm.py    # data parallel

Every item has a hidden taste; a click is likely where those of two histories of items agree. The
network sees the histories, and a few numbers, and learns the tastes in its tables. One line follows
the plan, `torch_topoopt.parallelize`; the rest is what one writes for DistributedDataParallel.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torch_topoopt

TABLES, ROWS, WIDTH, DENSE = 8, 4000, 64, 16
LOOKUPS = 32  # items of a history: rows of a table that are summed up for one sample
BATCH = 1024  # samples of all ranks together


class DLRM(nn.Module):
    """Dense features [samples, DENSE], indices [samples, TABLES, LOOKUPS]; logits [samples]."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.1 / LOOKUPS**0.5)
        self.bottom = nn.Sequential(nn.Linear(DENSE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(
            nn.Linear(WIDTH + pairs, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )
        self.register_buffer("pairs", torch.triu_indices(TABLES + 1, TABLES + 1, 1))

    def forward(self, dense: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        below = self.bottom(dense)
        vectors = [table(indices[:, i]) for i, table in enumerate(self.tables)]
        joined = torch.stack([below, *vectors], dim=1)
        products = joined @ joined.transpose(1, 2)
        crossed = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([below, crossed], dim=1)).squeeze(1)


def build_model() -> nn.Module:
    return DLRM()


def example_batch(batch_size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(batch_size, DENSE), torch.zeros(batch_size, TABLES, LOOKUPS).long()


class Clicks:
    """Samples of a world that `seed` describes."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tastes = torch.randn(TABLES, ROWS, 4, generator=generator)
        self.weights = torch.randn(DENSE, generator=generator) / DENSE**0.5

    def batch(self, samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Dense features, indices (popular rows come more often) and whether there was a click."""
        generator = torch.Generator().manual_seed(seed)
        dense = torch.randn(samples, DENSE, generator=generator)
        uniform = torch.rand(samples, TABLES, LOOKUPS, generator=generator)
        indices = (uniform**4 * ROWS).long()
        tastes = self.tastes[torch.arange(TABLES)[:, None], indices].sum(2) / LOOKUPS**0.5
        agreement = (tastes[:, 0::2] * tastes[:, 1::2]).sum(dim=(1, 2))
        clicked = agreement + dense @ self.weights > 0
        return dense, indices, clicked.float()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=BATCH, help="samples of all ranks")
    parser.add_argument("--target-accuracy", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


@torch.no_grad()
def accuracy(model: nn.Module, share: tuple[torch.Tensor, ...]) -> float:
    """Fraction that is right of all ranks' samples, of which `share` are this rank's."""
    model.eval()
    dense, indices, clicked = share
    right = ((model(dense, indices) > 0) == (clicked > 0.5)).float().mean()
    model.train()
    dist.all_reduce(right)
    return right.item() / dist.get_world_size()


def main() -> int:
    arguments = parse_arguments()
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(arguments.seed)
    model = torch_topoopt.parallelize(build_model(), example_batch())
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)

    world = Clicks(arguments.seed)
    test = world.batch(512, seed=rank)
    losses = []
    for step in range(1, arguments.steps + 1):
        seed = (step + 1) * ranks + rank
        dense, indices, clicked = world.batch(arguments.batch_size // ranks, seed)
        loss = binary_cross_entropy_with_logits(model(dense, indices), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % 50 and step != arguments.steps:
            continue
        score, mean = accuracy(model, test), torch.stack(losses).mean().item()
        losses.clear()
        if rank == 0:
            print(f"step {step:4}  loss {mean:.4f}  test accuracy {score:.3f}", flush=True)
            torch_topoopt.log(step=step, loss=mean, test_accuracy=score, steps=step)
    dist.destroy_process_group()
    return 0 if score >= arguments.target_accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
