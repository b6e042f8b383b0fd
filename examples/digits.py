"""Trains a VGG-style network on scikit-learn's handwritten digits, data parallel over all ranks.

    topoopt run --servers 4 --degree 2 examples/digits.py     # on a planned and wired fabric
    torchrun --nproc-per-node 4 examples/digits.py            # on PyTorch's own backend

Plain PyTorch: nothing here depends on the backend. The global batch is fixed and shared by the
ranks, so accuracy does not depend on their number.
"""

import argparse
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import torch_topoopt
from torch_topoopt.models import vgg


def build_model() -> torch.nn.Module:
    return vgg.build("digits")


def example_batch(batch_size: int = 120) -> torch.Tensor:
    return vgg.example_batch(batch_size, size="digits")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=120, help="samples of all ranks together")
    parser.add_argument("--target-accuracy", type=float, default=0.97)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Train and test set: 1437 and 360 images of 8 x 8 pixels, each digit in its proportion."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(labels)
    train, test = train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=seed, stratify=labels
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train_epoch(
    model: torch.nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    """One pass over this rank's share of the samples; returns its mean loss."""
    model.train()
    total = torch.zeros(())
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
    return float(total.item() / len(loader))


def accuracy(model: torch.nn.Module, dataset: TensorDataset) -> float:
    """Fraction of the test set that is right."""
    model.eval()
    images, labels = dataset.tensors
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> int:
    arguments = parse_arguments()
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(arguments.seed)

    train, test = digits(arguments.seed)
    share = max(1, round(arguments.batch_size / ranks))
    sampler = DistributedSampler(train, seed=arguments.seed)
    loader = DataLoader(train, batch_size=share, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    steps = arguments.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.lr, total_steps=steps)

    reached = None
    started = time.perf_counter()
    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, schedule)
        if rank > 0:
            continue  # rank 0 tests and reports
        score = accuracy(model.module, test)
        elapsed = time.perf_counter() - started
        if reached is None and score >= arguments.target_accuracy:
            reached = f"reached after {elapsed:.1f} s (epoch {epoch})"
        print(f"epoch {epoch:2}  loss {loss:.4f}  test accuracy {score:.3f}", flush=True)
        torch_topoopt.log(
            epoch=epoch,
            loss=loss,
            accuracy=score,
            target_accuracy=arguments.target_accuracy,
            elapsed_s=elapsed,
            steps=epoch * len(loader),
        )
    dist.destroy_process_group()
    if rank > 0:
        return 0
    outcome = reached or "not reached"
    print(f"test accuracy {score:.3f}, target {arguments.target_accuracy} {outcome}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
