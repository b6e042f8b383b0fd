"""What operations and groups hold is let go, without holding up the thread that moves the data."""

from __future__ import annotations

import ctypes
import os
import select
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.ranks import make_plan, run_ranks, values
from support.backend.usage import open_files
from support.launcher import wait_for
from support.limits import limit_s

HELD_MS = 60_000  # a rank that waits for the interpreter of another waits as long
ROUNDS = 50


def _read_with_the_gil(path: Path) -> bool:
    """Waits for a byte in a FIFO, holding the GIL; False if none comes."""
    with path.open("r+b", buffering=0) as file:  # at both ends, so that opening it waits for nobody
        waited_for = (ctypes.c_int * 2)(file.fileno(), select.POLLIN)  # a struct pollfd
        return ctypes.PyDLL(None).poll(waited_for, 1, HELD_MS) == 1


def _relay_while_a_dropped_operation_ends(rank: int, world: int) -> bool:
    """Rank 1, between the others, lets go of an operation and then does not let go of the GIL."""
    over = Path(os.environ["TOPOOPT_RUN_DIR"]) / "over"
    if rank == 1:
        os.mkfifo(over)
    dist.init_process_group("topoopt")
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group()
    dist.barrier()
    tensor = torch.ones(1000)
    if rank == 1:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        del work, tensor  # the operation alone has them now
        store.set("held", "1")
        in_time = _read_with_the_gil(over)
        dist.barrier()
        return in_time
    store.wait(["held"], timedelta(seconds=limit_s(30)))
    dist.all_reduce(tensor, group=group)
    for _ in range(ROUNDS):  # through rank 1
        if rank == 0:
            dist.send(tensor, 2)
            dist.recv(tensor, 2)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
    if rank == 0:
        over.write_bytes(b"1")
    dist.barrier()
    return True


def test_the_end_of_a_dropped_operation_waits_for_no_interpreter(tmp_path: Path) -> None:
    plan = networks.plan_of(3, networks.line(3))
    outcomes = run_ranks(plan, tmp_path, _relay_while_a_dropped_operation_ends)
    assert values(outcomes) == [True] * 3


def _sockets() -> int:
    return sum(name.startswith("socket:") for name in open_files())


def _end_without_a_run_folder(rank: int, world: int) -> None:
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
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
            good = _sockets()
        else:
            os.environ["TOPOOPT_RUN_DIR"] = "/does/not/exist"
            dist.destroy_process_group()  # training is over: that is no error of the script
            del os.environ["TOPOOPT_RUN_DIR"]
    wait_for(lambda: _sockets() <= good, "the end of the links")


def test_links_are_closed_although_their_counters_could_not_be_written(tmp_path: Path) -> None:
    values(run_ranks(make_plan(2, 1), tmp_path, _end_without_a_run_folder))
