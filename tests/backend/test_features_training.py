"""Training as PyTorch offers it, on a sparse plan, against the same computation on one process."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

RATE = 0.1


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def batch_of(rank: int, step: int = 0) -> torch.Tensor:
    return torch.sin(torch.arange(40, dtype=torch.float64).view(5, 8) * (rank + 1) + step)


def reference(world: int, steps: int = 2) -> list[torch.Tensor]:
    """Parameters after steps of SGD on the mean of all ranks' losses."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum(model(batch_of(rank, step)).square().mean() for rank in range(world))
        (loss / world).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int = 2) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(batch_of(rank, step)).square().mean().backward()
        optimizer.step()


def assert_trained(parameters: list[torch.Tensor], world: int, tolerance: float = 1e-12) -> None:
    for got, expected in zip(parameters, reference(world), strict=True):
        torch.testing.assert_close(got.detach(), expected, rtol=tolerance, atol=tolerance)


def check_ddp(rank: int, world: int) -> None:
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
        model = DistributedDataParallel(make_model(), **options)
        train(model, torch.optim.SGD(model.parameters(), RATE), rank)
        assert_trained(list(model.parameters()), world)


def check_compression_hooks(rank: int, world: int) -> None:
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    hooks = (
        (None, default_hooks.allreduce_hook, 1e-12),
        (None, default_hooks.fp16_compress_hook, 1e-3),
        (None, default_hooks.bf16_compress_hook, 1e-2),
        (state, powerSGD_hook.powerSGD_hook, 1e-12),  # exact: it starts after these steps
    )
    for state, hook, tolerance in hooks:
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(state, hook)
        train(model, torch.optim.SGD(model.parameters(), RATE), rank)
        assert_trained(list(model.parameters()), world, tolerance)
    train(model, torch.optim.SGD(model.parameters(), RATE), rank)  # now it compresses
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    others = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(others, own)
    assert all(torch.equal(other, own) for other in others)


def check_uneven_inputs(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False).double())
    with torch.no_grad():
        model.module.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    with model.join():
        for _ in range(rank + 1):
            optimizer.zero_grad()
            model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
            optimizer.step()
    # In step s the ranks s.. take part, and the sum of their gradients is divided by all ranks.
    expected = -sum((world - step) / world for step in range(world))
    assert torch.allclose(model.module.weight, torch.full_like(model.module.weight, expected))


def check_accumulation(rank: int, world: int) -> None:
    model = DistributedDataParallel(make_model())
    with model.no_sync():
        model(batch_of(rank, 0)).square().mean().backward()
    model(batch_of(rank, 1)).square().mean().backward()
    alone = make_model()
    for other in range(world):
        for step in range(2):
            (alone(batch_of(other, step)).square().mean() / world).backward()
    for got, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad)


def check_zero(rank: int, world: int) -> None:
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=RATE)
    train(model, optimizer, rank)
    assert_trained(list(model.parameters()), world)


def check_fsdp1(rank: int, world: int) -> None:
    model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
    train(model, torch.optim.SGD(model.parameters(), RATE), rank)
    with FullyShardedDataParallel.summon_full_params(model):
        assert_trained([p.clone() for p in model.parameters()], world)


def check_fsdp2(rank: int, world: int) -> None:
    meshes = (
        dist.init_device_mesh("cpu", (world,)),
        dist.init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")),
    )
    for mesh in meshes:
        model = make_model()
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, torch.optim.SGD(model.parameters(), RATE), rank)
        assert_trained([parameter.full_tensor() for parameter in model.parameters()], world)
    model = make_model()
    fully_shard(model, mesh=meshes[0])
    model.set_gradient_divide_factor(2.0 * world)
    train(model, torch.optim.SGD(model.parameters(), 2 * RATE), rank)
    assert_trained([parameter.full_tensor() for parameter in model.parameters()], world)


def check_dtensors(rank: int, world: int) -> None:
    mesh = DeviceMesh("cpu", torch.arange(world).view(2, world // 2))
    whole = torch.arange(56.0).view(7, 8)
    for placements in ([Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(1), Replicate()]):
        tensor = distribute_tensor(whole, mesh, placements)
        assert torch.equal(tensor.full_tensor(), whole)
        moved = tensor.redistribute(mesh, [Shard(1), Shard(0)])
        assert torch.equal(moved.full_tensor(), whole)
        torch.testing.assert_close((moved @ tensor.t()).full_tensor(), whole @ whole.t())


def check_tensor_parallel(rank: int, world: int) -> None:
    mesh = dist.init_device_mesh("cpu", (world,))
    alone = make_model()
    model = copy.deepcopy(alone)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = batch_of(0)
    torch.testing.assert_close(model(inputs), alone(inputs))
    model(inputs).square().sum().backward()
    alone(inputs).square().sum().backward()
    for got, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.grad.full_tensor(), expected.grad)


CHECKS: tuple[Callable[[int, int], None], ...] = (
    check_ddp,
    check_compression_hooks,
    check_uneven_inputs,
    check_accumulation,
    check_zero,
    check_fsdp1,
    check_fsdp2,
    check_dtensors,
    check_tensor_parallel,
)


def run_checks(rank: int, world: int) -> int:
    dist.init_process_group("topoopt")
    for check in CHECKS:
        check(rank, world)
    dist.barrier()
    dist.destroy_process_group()
    return len(CHECKS)


def test_training_gives_what_one_process_computes(tmp_path):
    assert values(run_ranks(make_plan(4, 2), tmp_path, run_checks)) == [len(CHECKS)] * 4
