"""What a rank remembers does not grow with the number of groups and tags that it has used."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.ranks import run_ranks, values

import torch_topoopt
from torch_topoopt.runtime.job import jobs

if TYPE_CHECKING:
    from pathlib import Path

# The endpoint remembers each group that has ended twice, by its number and in their order, until
# there are so many.
CLOSED_GROUPS = 4096
# It lists the flows to each rank that may be forgotten, also those of groups that have ended, until
# there are so many.
LISTED_FLOWS = 256
TAGS = 20  # that each group uses
LOOKS = 5


def _use_and_destroy(cycle: int, members: list[int], rank: int) -> None:
    group = dist.new_group(members)
    if rank in members:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        for tag in range(cycle * TAGS, (cycle + 1) * TAGS):
            if rank == members[0]:
                dist.send(tensor, members[1], group=group, tag=tag)
            elif rank == members[1]:
                dist.recv(tensor, members[0], group=group, tag=tag)
        dist.destroy_process_group(group)


def _objects() -> int:
    """Those of Python; another thread may hold some for a moment."""
    return min(len(gc.get_objects()) for _ in range(LOOKS))


def _counts(groups: int, rank: int, world: int) -> list[tuple[int, int, int]]:
    """At the half and at the end: remembered entries, open groups and objects of Python."""
    dist.init_process_group("topoopt")
    counts = []
    for half in range(2):
        for cycle in range(half * groups // 2, (half + 1) * groups // 2):
            _use_and_destroy(cycle, [0, 1, 2] if cycle % 2 else [cycle % 4, 1], rank)
        dist.barrier()
        gc.collect()
        (memory,) = torch_topoopt.stats()["memory"]
        # PyTorch itself keeps an empty list of each group.
        objects = _objects() - len(dist.distributed_c10d._world.tags_to_pg)
        counts.append((memory["remembered_entries"], len(jobs[0].groups), objects))
    dist.barrier()
    dist.destroy_process_group()
    return counts


@pytest.mark.parametrize("groups", [100, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_groups_and_tags_that_come_and_go_leave_nothing(tmp_path: Path, groups: int) -> None:
    plan = networks.plan_of(3, networks.line(3))
    outcomes = run_ranks(plan, tmp_path, partial(_counts, groups), limit_s=groups / 5 + 60)
    for (half, open_then, objects_then), (end, open_now, objects_now) in values(outcomes):
        closed = 2 * groups // 2 if groups < CLOSED_GROUPS else 0
        assert end - half <= closed + 2 * LISTED_FLOWS + 60
        assert open_now <= open_then <= 2  # that of all ranks, and the last that was destroyed
        assert objects_now - objects_then < groups // 4
