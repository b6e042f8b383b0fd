"""Modules and functions that compute with a rank's parts of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import linear

from torch_topoopt.parallel.sharded.local_parts import LocalProducts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.distributed.tensor import Placement

PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": linear,
    "linear, no bias": lambda x, weight, _: linear(x, weight=weight),
    "matmul": lambda x, weight, _: torch.matmul(x, weight.t()),
    "@": lambda x, weight, bias: x @ weight.t() + bias,
}
# of the matrix, and of the product
PLACEMENTS = [(Replicate(), Shard(1)), (Shard(0), Shard(2))]


def tensors() -> list[torch.Tensor]:
    """Samples of positions, a matrix and a bias."""
    generator = torch.Generator().manual_seed(3)
    shapes = (2, 4, 6), (8, 6), (8,)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def multiply(name: str, placement: Placement, mesh: Any) -> tuple[Any, list[torch.Tensor]]:
    """The placements of the product, and its whole value with the whole gradients."""
    placements = (Shard(1), placement, Replicate())
    given = [
        distribute_tensor(tensor.detach(), mesh, [its]).requires_grad_()
        for tensor, its in zip(tensors(), placements, strict=True)
    ]
    with LocalProducts():
        made = PRODUCTS[name](*given)
    whole = made.redistribute(placements=[Replicate()]).to_local()
    whole.square().sum().backward()
    gradients = [tensor.grad.full_tensor() for tensor in given if tensor.grad is not None]
    return made.placements, [whole.detach(), *gradients]


def multiply_all(rank: int, world: int) -> list[Any]:
    dist.init_process_group("topoopt")
    mesh = init_device_mesh("cpu", (world,))
    done = [multiply(name, its, mesh) for name in PRODUCTS for its, _ in PLACEMENTS]
    dist.destroy_process_group()
    return [(placements, [one.numpy() for one in its]) for placements, its in done]


def test_products_of_divided_positions_are_those_of_whole_ones(tmp_path: Path) -> None:
    done = values(run_ranks(make_plan(2, 1), tmp_path, multiply_all))
    cases = [(name, result) for name in PRODUCTS for _, result in PLACEMENTS]
    for of_rank in done:
        for (name, result), (placements, found) in zip(cases, of_rank, strict=True):
            given = tensors()
            whole = PRODUCTS[name](*given)
            whole.square().sum().backward()
            expected = [whole, *(one.grad for one in given if one.grad is not None)]
            assert placements == (result,), name
            assert len(found) == len(expected), name
            for one, other in zip(found, expected, strict=True):
                assert one == pytest.approx(other.detach().numpy(), abs=1e-4), name
