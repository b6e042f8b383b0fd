"""The resources of a rank do not grow with its operations."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from support.backend.usage import check_usage, most_of, usage

OPERATIONS = int(os.environ.get("TOPOOPT_TEST_OPERATIONS", "6000"))
ALLOWED_GROWTH_KB = 4 << 10
GROUPS, LIVES = 200, 20
SETTLED = 5  # after which nothing grows any more
MORE_THREADS = 4  # of the job, where several operations happen to complete at once


def resident_kb() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def run_operations(rank: int, world: int, count: int) -> None:
    small, large = torch.ones(10), torch.ones(30_000)
    outputs = [torch.empty(10) for _ in range(world)]
    for i in range(count // 6):
        dist.all_reduce(small, op=dist.ReduceOp.MAX)
        work = dist.all_reduce(large, op=dist.ReduceOp.MAX, async_op=True)
        dist.all_gather(outputs, small)
        work.get_future().wait()
        dist.broadcast(large, i % world)
        if rank == 0:
            dist.send(small, 1, tag=i)  # every tag is a stream of its own
        elif rank == 1:
            dist.recv(small, 0, tag=i)
        dist.barrier()


def measure_memory(rank: int, world: int) -> list[int]:
    dist.init_process_group("topoopt")
    run_operations(rank, world, 1200)
    sizes = [resident_kb()]
    for _ in range(4):
        run_operations(rank, world, OPERATIONS // 4)
        sizes.append(resident_kb())
    dist.destroy_process_group()
    return sizes


@pytest.mark.timeout(120 + OPERATIONS // 50)
def test_memory_does_not_grow_with_the_number_of_operations(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, measure_memory, limit_s=90 + OPERATIONS // 50)
    for sizes in values(outcomes):
        # What a thread or an allocator takes once is no growth with every operation.
        growths = [later - before for before, later in itertools.pairwise(sizes)]
        assert min(growths) <= ALLOWED_GROWTH_KB / len(growths), sizes


def come_and_go(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    seen = []
    for number in range(GROUPS):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1000), group=group)
        dist.destroy_process_group(group)
        seen.append(usage())
        if number >= SETTLED:
            before = most_of(seen[:SETTLED])
            check_usage(dataclasses.replace(before, threads=before.threads + MORE_THREADS))
    dist.destroy_process_group()
    lives = []
    for number in range(LIVES):
        dist.init_process_group("topoopt")
        dist.all_reduce(torch.ones(1000))
        dist.destroy_process_group()
        lives.append(usage())
        if number >= SETTLED:
            check_usage(most_of(lives[:SETTLED]))


@pytest.mark.parametrize("ranks_per_server", [1, 2])
def test_groups_and_lives_leave_no_descriptor_thread_or_memory_behind(ranks_per_server, tmp_path):
    values(run_ranks(make_plan(2, 1), tmp_path, come_and_go, world=2 * ranks_per_server))
