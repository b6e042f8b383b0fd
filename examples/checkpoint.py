"""Trains on scikit-learn's handwritten digits with checkpoints, and goes on from the last of them.

    topoopt run --servers 4 --max-restarts 3 examples/checkpoint.py
    topoopt run --nnodes 2:4 --max-restarts 3 examples/checkpoint.py   # also with fewer servers
    torchrun --nproc-per-node 4 --max-restarts 3 examples/checkpoint.py

Plain PyTorch: torch.distributed.checkpoint saves model, optimizer and step, and the ranks go on at
the last complete checkpoint of the folder whenever they start, after a failure or anew. A step has
the same samples for any number of ranks, so a job that lost a server computes what it would have.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import torch_topoopt


def build_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def example_batch(batch_size: int = 120) -> torch.Tensor:
    return torch.zeros(batch_size, 64)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    parser.add_argument("--batch-size", type=int, default=120, help="samples of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def last_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint of the highest step: `.metadata` is the file that is written last."""
    complete = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


class Training:
    """Model, optimizer and the number of the next step; what a checkpoint has."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.step = 0
        self.model = DistributedDataParallel(build_model())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=arguments.lr)

    def _state(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def save(self, folder: Path) -> None:
        dcp.save(self._state(), checkpoint_id=folder / f"step-{self.step}")

    def load(self, path: Path) -> None:
        state = self._state()
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]


def batch_of(step: int, samples: int, arguments: argparse.Namespace) -> torch.Tensor:
    """The samples of a step, whatever the number of ranks, of which each takes its share."""
    generator = torch.Generator().manual_seed(arguments.seed * 1_000_003 + step)
    return torch.randperm(samples, generator=generator)[: arguments.batch_size]


def main() -> int:
    arguments = parse_arguments()
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)

    training = Training(arguments)
    found = last_checkpoint(arguments.folder)
    if found is not None:
        training.load(found)
    if rank == 0:
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        start = f"from {found}" if found else "from the beginning"
        print(f"restart {restart}: step {training.step} of {ranks} ranks, {start}", flush=True)

    while training.step < arguments.steps:
        own = batch_of(training.step, len(images), arguments)[rank::ranks]
        training.optimizer.zero_grad()
        loss = cross_entropy(training.model(images[own]), labels[own], reduction="sum")
        (loss * ranks / arguments.batch_size).backward()  # DDP takes the mean over the ranks
        training.optimizer.step()
        training.step += 1
        if training.step % arguments.every and training.step < arguments.steps:
            continue
        training.save(arguments.folder)
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            mean = total.item() / arguments.batch_size
            print(f"step {training.step}  loss {mean:.6f}", flush=True)
            torch_topoopt.log(step=training.step, loss=mean, ranks=ranks)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
