"""What a rank of benchmarks/faults.py does wrong when it is ordered to, instead of an all_reduce.

Each returns how many results it got that it should not have: other ranks count their own.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

ELEMENTS = 16_384  # of 64 bits, of an all_reduce
PART = 512  # for each rank, of an all_to_all
_LONG_S = 3600.0
_SPARE_BYTES = 64 << 20
_HUGE_BYTES = 1 << 32


def _raise(rank: int, world: int) -> int:
    raise ValueError("the disk is full")


def _exit_at_once(rank: int, world: int) -> int:
    os._exit(3)


def _sys_exit(rank: int, world: int) -> int:
    sys.exit(4)


def _crash(rank: int, world: int) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def _out_of_memory(rank: int, world: int) -> int:
    """Where the address space is limited (ulimit -v), the allocation fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    own_bytes = pages * resource.getpagesize() + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (own_bytes, own_bytes))
    torch.zeros(_HUGE_BYTES, dtype=torch.uint8)
    return 0


def _fill_memory(rank: int, world: int) -> int:
    """Until the kernel ends this process: its cgroup has a limit."""
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 16)) * 64)


def _leave(rank: int, world: int) -> int:
    dist.destroy_process_group()
    time.sleep(_LONG_S)
    return 0


def _never_call(rank: int, world: int) -> int:
    time.sleep(_LONG_S)
    return 0


def _other_collective(rank: int, world: int) -> int:
    dist.broadcast(torch.zeros(ELEMENTS, dtype=torch.int64), 0)
    return 0


def _other_reduction(rank: int, world: int) -> int:
    dist.all_reduce(torch.zeros(ELEMENTS, dtype=torch.int64), dist.ReduceOp.MAX)
    return 0


def _other_shape(rank: int, world: int) -> int:
    dist.all_reduce(torch.zeros(ELEMENTS // 2, dtype=torch.int64))
    return 0


def _other_dtype(rank: int, world: int) -> int:
    """Of the same size, so that no count of bytes shows it."""
    dist.all_reduce(torch.zeros(ELEMENTS, dtype=torch.float64))
    return 0


def _all_with_another_root(rank: int, world: int) -> int:
    """All ranks broadcast; one of them names another root."""
    value = torch.full((ELEMENTS,), rank)
    dist.broadcast(value, _ROOT_OF_ODD if rank == _ODD else 0)
    return int(rank != _ODD and bool((value != 0).any()))


_ODD, _ROOT_OF_ODD = 5, 3


def _other_order(rank: int, world: int) -> int:
    """The all_to_all of the step comes first on this rank."""
    sent = torch.zeros(PART * world, dtype=torch.int64)
    dist.all_to_all_single(torch.empty_like(sent), sent)
    dist.all_reduce(torch.zeros(ELEMENTS, dtype=torch.int64))
    return 0


def _other_splits(rank: int, world: int) -> int:
    """All ranks exchange 512 elements with each; one of them 256."""
    sent = torch.full(((PART // 2 if rank == _ODD else PART) * world,), rank)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    expected = torch.arange(world).repeat_interleave(sent.numel() // world)
    return int(not torch.equal(received, expected))


def _send_other_dtype(rank: int, world: int) -> int:
    """Each even rank sends floats to the next one, which receives integers."""
    if rank % 2 == 0:
        dist.send(torch.ones(1024, dtype=torch.float32), (rank + 1) % world)
        return 0
    received = torch.zeros(1024, dtype=torch.int32)
    dist.recv(received, rank - 1)
    return 1  # what are these integers?


DEEDS: dict[str, Callable[[int, int], int]] = {
    "raise": _raise,
    "exit at once": _exit_at_once,
    "sys.exit": _sys_exit,
    "crash": _crash,
    "out of memory": _out_of_memory,
    "fill memory": _fill_memory,
    "leave": _leave,
    "never call": _never_call,
    "other collective": _other_collective,
    "other reduction": _other_reduction,
    "other shape": _other_shape,
    "other dtype": _other_dtype,
    "other root": _all_with_another_root,
    "other order": _other_order,
    "other splits": _other_splits,
    "send other dtype": _send_other_dtype,
}
