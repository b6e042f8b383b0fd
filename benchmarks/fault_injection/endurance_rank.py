"""A rank of endurance.py: collectives and DDP steps in a loop, every result checked to the bit.

    topoopt run ... benchmarks/fault_injection/endurance_rank.py SECONDS BYTES RESULT

RESULT gets the number of steps, and begin and end of every timed all_reduce (time.monotonic).
All values are whole numbers, or multiples of 1/8, that float32 has exactly: results do not depend
on the order of additions.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_ELEMENTS = 4096
_FEATURES = 64


def check(found: torch.Tensor, expected: torch.Tensor, what: str, step: int) -> None:
    if not torch.equal(found, expected):
        wrong = int((found != expected).sum())
        raise AssertionError(f"step {step}: {what}: {wrong} of {found.numel()} elements are wrong")


def reduce_timed(rank: int, world: int, step: int, elements: int) -> tuple[float, float]:
    """One all_reduce after a barrier; when it began and ended."""
    index = torch.arange(elements, dtype=torch.int32)
    tensor = index * (rank + 1) + step
    dist.barrier()
    begin = time.monotonic()
    dist.all_reduce(tensor)
    end = time.monotonic()
    check(tensor, index * (world * (world + 1) // 2) + world * step, "all_reduce", step)
    return begin, end


def exchange(rank: int, world: int, step: int) -> None:
    sent = torch.arange(world * _ELEMENTS) + rank * (step + 1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    own = torch.arange(rank * _ELEMENTS, (rank + 1) * _ELEMENTS)
    expected = torch.cat([own + peer * (step + 1) for peer in range(world)])
    check(received, expected, "all_to_all", step)


def broadcast(rank: int, world: int, step: int) -> None:
    root = step % world
    expected = torch.arange(_ELEMENTS) * (step + 1)
    tensor = expected.clone() if rank == root else torch.full((_ELEMENTS,), -1)
    dist.broadcast(tensor, root)
    check(tensor, expected, "broadcast", step)


class Training:
    """A DDP model whose weights after any number of steps each rank can compute by itself."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        linear = torch.nn.Linear(_FEATURES, _FEATURES, bias=False)
        torch.nn.init.zeros_(linear.weight)
        self._expected = torch.zeros_like(linear.weight)
        self._model = DistributedDataParallel(linear)
        self._optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)

    def step(self, step: int) -> None:
        self._optimizer.zero_grad()
        self._model(self._sample(self._rank, step)).sum().backward()
        self._optimizer.step()
        gradients = [self._sample(rank, step) for rank in range(self._world)]
        self._expected -= torch.stack(gradients).sum(0) / self._world
        weights = next(self._model.parameters()).detach()
        check(weights, self._expected, "weights of DDP", step)

    @staticmethod
    def _sample(rank: int, step: int) -> torch.Tensor:
        """The gradient of every row of the weights, too."""
        return ((torch.arange(_FEATURES) * (rank + 1) + step) % 3 - 1).to(torch.float32)


def main() -> None:
    seconds, elements, result = float(sys.argv[1]), int(sys.argv[2]) // 4, Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    rank, world = dist.get_rank(), dist.get_world_size()
    training = Training(rank, world)
    dist.barrier()
    if rank == 0:
        Path(os.environ["READY"]).touch()
    timed = []
    limit = time.monotonic() + seconds
    over = torch.zeros(1, dtype=torch.int64)
    step = 0
    while not over[0]:
        timed.append(reduce_timed(rank, world, step, elements))
        exchange(rank, world, step)
        broadcast(rank, world, step)
        training.step(step)
        step += 1
        over[0] = time.monotonic() > limit
        dist.all_reduce(over, dist.ReduceOp.MAX)
    counted = torch.tensor([step, -step])
    dist.all_reduce(counted, dist.ReduceOp.MIN)
    assert counted.tolist() == [step, -step], "all ranks have made the same steps"
    if rank == 0:
        result.write_text(json.dumps({"steps": step, "timed": timed}), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
