"""Tensors that PyTorch treats in a special way are plain memory to the backend."""

from __future__ import annotations

import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values


def strided(rank: int) -> torch.Tensor:
    return torch.full((4, 6), float(rank + 1))[:, ::2]


def reduce_and_gather_in_inference_mode(rank: int, world: int) -> list[bool]:
    dist.init_process_group("topoopt")
    with torch.inference_mode():
        tensor = strided(rank)
        outputs = [torch.empty(3) for _ in range(world)]
        # Also when the mode has ended on this thread before the results are written.
        gathering = dist.all_gather(outputs, torch.full((3,), float(rank)), async_op=True)
        dist.all_reduce(tensor)
    gathering.wait()
    dist.destroy_process_group()
    total = world * (world + 1) / 2
    return [
        bool((tensor == total).all()),
        all(bool((output == r).all()) for r, output in enumerate(outputs)),
    ]


def test_inference_tensors_can_be_reduced_and_received_into(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, reduce_and_gather_in_inference_mode)
    assert values(outcomes) == [[True, True]] * 2


def use_leaves_that_require_gradients(rank: int, world: int) -> list[bool]:
    dist.init_process_group("topoopt")
    total = world * (world + 1) / 2
    reduced = torch.nn.Parameter(strided(rank))
    dist.all_reduce(reduced)
    scaled = torch.nn.Parameter(torch.full((5,), float(rank + 1)))
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    gathered = [torch.nn.Parameter(torch.empty(3)) for _ in range(world)]
    dist.all_gather(gathered, torch.full((3,), float(rank)))
    scattered = torch.nn.Parameter(torch.empty(2))
    dist.reduce_scatter(scattered, [torch.nn.Parameter(torch.ones(2)) for _ in range(world)])
    dist.destroy_process_group()
    leaves = [reduced, scaled, *gathered, scattered]
    return [
        bool((reduced == total).all()),
        bool((scaled == total / 2).all()),
        all(bool((output == r).all()) for r, output in enumerate(gathered)),
        bool((scattered == world).all()),
        all(leaf.is_leaf and leaf.requires_grad for leaf in leaves),
    ]


def test_leaves_that_require_gradients_can_be_reduced_and_received_into(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, use_leaves_that_require_gradients)
    assert values(outcomes) == [[True] * 5] * 2
