"""The resources of a rank do not grow with its operations."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

OPERATIONS = int(os.environ.get("TOPOOPT_TEST_OPERATIONS", "6000"))
ALLOWED_GROWTH_KB = 4 << 10


def resident_kb() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def handles() -> tuple[int, int, int]:
    """File descriptors, threads and pieces of shared memory of this process."""
    shared = Path("/proc/self/maps").read_text().count("/memfd:")
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), shared


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
        assert sizes[-1] - sizes[0] <= ALLOWED_GROWTH_KB, sizes


def come_and_go(rank: int, world: int) -> dict[str, list[tuple[int, int, int]]]:
    seen: dict[str, list[tuple[int, int, int]]] = {"groups": [], "lives": []}
    dist.init_process_group("topoopt")
    for _ in range(200):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1000), group=group)
        dist.destroy_process_group(group)
        seen["groups"].append(handles())
    dist.destroy_process_group()
    for _ in range(20):
        dist.init_process_group("topoopt")
        dist.all_reduce(torch.ones(1000))
        dist.destroy_process_group()
        seen["lives"].append(handles())
    return seen


@pytest.mark.parametrize("ranks_per_server", [1, 2])
def test_groups_and_lives_leave_no_descriptor_thread_or_memory_behind(ranks_per_server, tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, come_and_go, world=2 * ranks_per_server)
    for seen in values(outcomes):
        for what, counts in seen.items():
            settled = counts[len(counts) // 4 :]
            assert min(settled) == max(settled), (what, counts)
