"""Tensors of more than 2 GiB, where 32-bit sizes and offsets would wrap around."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

BYTES = 2_200_000_001  # above 2 GiB, and odd
NEEDED_BYTES = 3 * BYTES  # two ranks, and some room


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def move_and_reduce(rank: int, world: int) -> list[bool]:
    dist.init_process_group("topoopt")
    results = []
    tensor = torch.zeros(BYTES, dtype=torch.uint8)
    tensor[-5:] = rank + 1
    tensor[2**31 - 3 : 2**31 + 3] = 10 * (rank + 1)
    dist.all_reduce(tensor)
    results.append(tensor[-5:].tolist() == [3] * 5)
    results.append(tensor[2**31 - 4 : 2**31 + 4].tolist() == [0, *[30] * 6, 0])
    results.append(int(torch.count_nonzero(tensor)) == 5 + 6)
    tensor[-1] = 200 + rank
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    results.append(tensor[-2:].tolist() == [3, 200])
    dist.destroy_process_group()
    return results


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    available_bytes() < NEEDED_BYTES, reason=f"needs {NEEDED_BYTES >> 30} GiB of free memory"
)
@pytest.mark.exhaustive
def test_a_tensor_above_two_gibibytes_is_reduced_and_sent_whole(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, move_and_reduce, limit_s=280)
    assert values(outcomes) == [[True] * 4] * 2
