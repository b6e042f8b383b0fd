"""Jobs whose links and reductions have threads of their own."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from torch.nn.parallel import DistributedDataParallel

_WIDTH = 768  # a layer of it has 2.25 MiB, of which chunks are long enough to be handed over
_STEPS = 3


def waits_by_name() -> dict[str, list[int]]:
    """How often each of this process's threads has waited, those of a name together."""
    waits: dict[str, list[int]] = {}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        status = (task / "status").read_text().splitlines()
        (count,) = (line for line in status if line.startswith("voluntary_ctxt_switches"))
        waits.setdefault(name, []).append(int(count.split()[1]))
    return waits


def trained(on: bool, rank: int, world: int) -> tuple[bytes, dict[str, list[int]]]:
    """The weights after some steps with DDP, and the threads that this process had then."""
    os.environ["TOPOOPT_LINK_THREADS"] = str(int(on))
    os.environ["TOPOOPT_REDUCE_THREADS"] = "2" if on else "0"
    os.environ["TOPOOPT_CONNECTIONS"] = "1"
    os.environ["TOPOOPT_ALGORITHM"] = "ring"
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(_WIDTH, _WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(_STEPS):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, _WIDTH)).square().mean().backward()
        optimizer.step()
    threads = waits_by_name()
    dist.barrier()
    dist.destroy_process_group()
    return model.module.weight.detach().numpy().tobytes(), threads


def test_ddp_has_the_same_bits_and_threads_do_the_work(tmp_path: Path) -> None:
    without = values(run_ranks(make_plan(2, 1), tmp_path, functools.partial(trained, False)))
    own = values(run_ranks(make_plan(2, 1), tmp_path, functools.partial(trained, True)))
    assert len({weights for weights, _ in (*without, *own)}) == 1
    for _, threads in without:
        assert not any(name.startswith("topoopt-") for name in threads)
    for _, threads in own:
        for name, count in (("topoopt-read", 1), ("topoopt-write", 1), ("topoopt-work", 2)):
            waits = threads[name]
            assert len(waits) == count
            assert sum(waits) > count, name  # every thread waits once before it has work
