"""The norm of a divided model's gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Iterable


def clip_gradients(
    parameters: Iterable[torch.nn.Parameter],
    max_norm: float,
    per_stage: int,
    repeated: Iterable[torch.nn.Parameter] = (),
) -> torch.Tensor:
    """Scales the gradients of all ranks to a Euclidean norm of at most `max_norm`; returns that of
    before. A collective call.

    A stage has `per_stage` ranks. Each share counts once, however many of them have it; those of
    parameters that are `repeated` from another stage do not count.
    """
    ignored = {id(parameter) for parameter in repeated}
    trained = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in trained]
    counted = [p.grad for p in trained if id(p) not in ignored]
    squares = [
        gradient.norm() ** 2 * (_pieces(whole) / per_stage)
        for whole in counted
        if (gradient := local_of(whole)).numel()
    ]
    device = gradients[0].device if gradients else torch.device("cpu")
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=device)
    dist.all_reduce(total)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for whole in gradients:
        local_of(whole).mul_(factor)
    return norm


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _pieces(tensor: torch.Tensor) -> int:
    """The number of parts that the tensor is divided into."""
    if not isinstance(tensor, DTensor):
        return 1
    shards = (
        tensor.device_mesh.size(dim)
        for dim, placement in enumerate(tensor.placements)
        if not placement.is_replicate()
    )
    return math.prod(shards)
