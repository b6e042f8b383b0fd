"""Jobs whose links send long pieces from where they lie."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

import torch_topoopt

if TYPE_CHECKING:
    from pathlib import Path

_ELEMENTS = 1 << 20  # 4 MiB
_ROUNDS = 6


def exchanged(asked: str, rank: int, world: int) -> tuple[list[bool], list[dict[str, Any]]]:
    """What messages and reductions came out right while their memory was used again at once, and
    this rank's links."""
    os.environ["TOPOOPT_ZERO_COPY"] = asked
    os.environ["TOPOOPT_CONNECTIONS"] = "1"
    dist.init_process_group("topoopt")
    right = []
    message, received = torch.empty(_ELEMENTS), torch.empty(_ELEMENTS)
    for number in range(_ROUNDS):
        message.fill_(rank + 10 * number)
        works = [dist.isend(message, 1 - rank), dist.irecv(received, 1 - rank)]
        works[0].wait()
        message.fill_(-1.0)
        works[1].wait()
        right.append(bool((received == 1 - rank + 10 * number).all()))
        reduced = torch.full((_ELEMENTS,), float(rank + number))
        dist.all_reduce(reduced)
        right.append(bool((reduced == 1 + 2 * number).all()))
    dist.barrier()
    links = torch_topoopt.stats()["links"]
    dist.destroy_process_group()
    return right, links


def test_memory_is_free_when_the_work_is_over(tmp_path: Path) -> None:
    """Where the kernel copies, as it does here, it gives memory back no sooner."""
    job = functools.partial(exchanged, "always")
    for right, links in values(run_ranks(make_plan(2, 1), tmp_path, job)):
        assert all(right)
        (link,) = links
        assert link["zero_copy_bytes"] == 0
        # All but heads and tails of frames and writes, which are short.
        assert link["copied_bytes"] > 0.5 * link["sent_bytes"]


def test_a_link_ends_it_where_the_kernel_copies(tmp_path: Path) -> None:
    job = functools.partial(exchanged, "1")
    for right, links in values(run_ranks(make_plan(2, 1), tmp_path, job)):
        assert all(right)
        (link,) = links
        assert 0 < link["copied_bytes"] < 0.5 * link["sent_bytes"]
