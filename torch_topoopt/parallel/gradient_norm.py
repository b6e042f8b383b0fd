"""The norm of a divided model's gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch_topoopt.plan.layout import Layout


def clip_gradients(
    parameters: Iterable[torch.nn.Parameter],
    max_norm: float,
    holders: Callable[[torch.nn.Parameter], int],
    repeated: Iterable[torch.nn.Parameter] = (),
) -> torch.Tensor:
    """Scales the gradients of all ranks to a Euclidean norm of at most `max_norm`; returns that of
    before. A collective call.

    So many ranks as `holders` says have this rank's share of a parameter, which counts once; those
    of parameters that are `repeated` from another stage do not count.
    """
    ignored = {id(parameter) for parameter in repeated}
    trained = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in trained]
    squares = [
        gradient.norm() ** 2 / holders(parameter)
        for parameter in trained
        if id(parameter) not in ignored and (gradient := local_of(parameter.grad)).numel()
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


def holders_of(layout: Layout) -> Callable[[torch.nn.Parameter], int]:
    """The number of ranks with this rank's share of a parameter, under `layout`."""
    per_stage = layout.accelerators // layout.pipeline

    def holders(parameter: torch.nn.Parameter) -> int:
        if not isinstance(parameter, DTensor):
            return per_stage
        shards = (
            parameter.device_mesh.size(dim)
            for dim, placement in enumerate(parameter.placements)
            if not placement.is_replicate()
        )
        return int(per_stage // math.prod(shards))

    return holders
