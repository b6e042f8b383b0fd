"""Corners of torch.distributed that have no test of their own in PyTorch's suite."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from support.backend.ranks import make_plan, run_ranks, values
from support.refusals import refused
from torch import nn
from torch.distributed import nn as differentiable
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Shard, distribute_tensor

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def check_float8_is_moved_but_not_reduced(rank: int, world: int) -> None:
    for dtype in FLOAT8:
        own = torch.full((5,), rank + 1.0).to(dtype)
        expected = [torch.full((5,), r + 1.0) for r in range(world)]
        outputs = [torch.empty(5, dtype=dtype) for _ in range(world)]
        dist.all_gather(outputs, own)
        assert all(torch.equal(o.float(), e) for o, e in zip(outputs, expected, strict=True))
        swapped = torch.empty(world, dtype=dtype)
        dist.all_to_all_single(swapped, torch.arange(1.0, world + 1).to(dtype))
        assert torch.equal(swapped.float(), torch.full((world,), rank + 1.0))
        dist.broadcast(own, 2)
        assert torch.equal(own.float(), expected[2])
        with refused(TypeError, "cannot reduce"):
            dist.all_reduce(own)


def check_coalescing(rank: int, world: int) -> None:
    tensors = [torch.full((size,), float(rank)) for size in (3, 7)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all((tensor == world * (world - 1) / 2).all() for tensor in tensors)


def check_gradients_through_collectives(rank: int, world: int) -> None:
    tensor = torch.full((3,), rank + 1.0, requires_grad=True)
    differentiable.functional.all_reduce(tensor * tensor).sum().backward()
    assert torch.equal(tensor.grad, 2 * world * tensor.detach())
    gathered = torch.stack(differentiable.functional.all_gather(tensor))
    tensor.grad = None
    (gathered * torch.arange(float(world)).view(-1, 1)).sum().backward()
    assert torch.equal(tensor.grad, torch.full((3,), float(rank * world)))


def check_compiled_functional_collectives(rank: int, world: int) -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def compute(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        part = functional.reduce_scatter_tensor(total, "avg", 0, dist.group.WORLD)
        return total + 1, functional.all_gather_tensor(part, 0, dist.group.WORLD)

    total, gathered = compute(torch.full((world * 2,), float(rank)))
    expected = torch.full((world * 2,), float(world * (world - 1)))
    assert torch.equal(total, expected + 1)
    assert torch.equal(gathered, expected)


def check_pipelines(rank: int, world: int) -> None:
    torch.manual_seed(1)
    layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(world)))
    inputs, targets = torch.randn(2 * world, 6), torch.randn(2 * world, 6)
    expected = layers(inputs)
    nn.functional.mse_loss(expected, targets).backward()
    for schedule_type in (ScheduleGPipe, Schedule1F1B):
        stage_module = nn.Linear(6, 6)
        stage_module.load_state_dict(layers[rank].state_dict())
        stage = PipelineStage(stage_module, rank, world, torch.device("cpu"))
        schedule = schedule_type(stage, world, loss_fn=nn.functional.mse_loss)
        if rank == 0:
            schedule.step(inputs)
        elif rank == world - 1:
            torch.testing.assert_close(schedule.step(target=targets), expected)
        else:
            schedule.step()
        torch.testing.assert_close(stage_module.weight.grad, layers[rank].weight.grad)


def check_checkpoint(rank: int, world: int) -> None:
    folder = Path(os.environ["TOPOOPT_RUN_DIR"]) / "checkpoint"
    mesh = dist.init_device_mesh("cpu", (world,))
    whole = torch.arange(40.0).view(10, 4)
    dcp.save({"weight": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
    loaded = {"weight": distribute_tensor(torch.zeros(10, 4), mesh, [Shard(1)])}
    dcp.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["weight"].full_tensor(), whole)


def run_checks(rank: int, world: int) -> bool:
    dist.init_process_group("topoopt")
    check_float8_is_moved_but_not_reduced(rank, world)
    check_coalescing(rank, world)
    check_gradients_through_collectives(rank, world)
    check_compiled_functional_collectives(rank, world)
    check_pipelines(rank, world)
    check_checkpoint(rank, world)
    dist.barrier()
    dist.destroy_process_group()
    return True


def test_the_rest_of_torch_distributed_works(tmp_path):
    assert values(run_ranks(make_plan(4, 2), tmp_path, run_checks)) == [True] * 4
