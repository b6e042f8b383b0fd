"""What operations and groups hold is let go, without holding up the thread that moves the data."""

from __future__ import annotations

import ctypes
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.ranks import make_plan, run_ranks, values
from support.backend.usage import open_files

if TYPE_CHECKING:
    from pathlib import Path

HOLD_S = 4
ROUNDS = 50


def _relay_while_a_dropped_operation_ends(rank: int, world: int) -> bool:
    """Rank 1, between the others, lets go of an operation and then does not let go of the GIL."""
    dist.init_process_group("topoopt")
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group()
    dist.barrier()
    tensor = torch.ones(1000)
    if rank == 1:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        del work, tensor  # the operation alone has them now
        store.set("held", "1")
        ctypes.PyDLL(None).usleep(HOLD_S * 1_000_000)
        store.set("let go", "1")
        dist.barrier()
        return True
    store.wait(["held"], timedelta(seconds=30))
    dist.all_reduce(tensor, group=group)
    for _ in range(ROUNDS):  # through rank 1
        if rank == 0:
            dist.send(tensor, 2)
            dist.recv(tensor, 2)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
    held = not store.check(["let go"])
    dist.barrier()
    return held


def test_the_end_of_a_dropped_operation_waits_for_no_interpreter(tmp_path: Path) -> None:
    plan = networks.plan_of(3, networks.line(3))
    outcomes = run_ranks(plan, tmp_path, _relay_while_a_dropped_operation_ends)
    assert values(outcomes) == [True] * 3


def _sockets() -> int:
    return sum(name.startswith("socket:") for name in open_files())


def _end_without_a_run_folder(rank: int, world: int) -> tuple[int, int]:
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    counts = []
    for life in range(2):
        dist.init_process_group(
            "topoopt",
            store=dist.PrefixStore(f"life {life}", store),
            rank=rank,
            world_size=world,
        )
        dist.barrier()
        if life == 0:
            dist.destroy_process_group()
        else:
            os.environ["TOPOOPT_RUN_DIR"] = "/does/not/exist"
            with pytest.raises(FileNotFoundError):
                dist.destroy_process_group()
            del os.environ["TOPOOPT_RUN_DIR"]
        counts.append(_sockets())
    return counts[0], counts[1]


def test_links_are_closed_although_their_counters_could_not_be_written(tmp_path: Path) -> None:
    outcomes = run_ranks(make_plan(2, 1), tmp_path, _end_without_a_run_folder)
    for good, bad in values(outcomes):
        assert bad <= good
