"""The batch that a model is called with, on the meta device, and at other sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torch_topoopt.profile.tracing.records import ProfileError, tensors

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def meta_twin(tensor: Any) -> Any:
    twin = tensor.detach().to("meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin.requires_grad_(tensor.requires_grad)


def positional_and_keyword(example_batch: Any) -> Arguments:
    """Positional and keyword arguments of the model's call, on the meta device."""
    batch = tree_map_only(torch.Tensor, meta_twin, example_batch)
    if isinstance(batch, dict):
        return (), batch
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return tuple(batch), {}
    return (batch,), {}


def batch_size_of(batch: Arguments, wanted: int | None) -> int:
    first = [int(t.shape[0]) for t in tensors(batch) if t.dim()]
    if not first:
        raise ProfileError(
            "example_batch: it holds no tensor with a batch dimension; expected a tensor, a tuple "
            "of positional arguments or a dict of keyword arguments"
        )
    size = first[0] if wanted is None else wanted
    if size not in first or size < 1:
        raise ProfileError(
            f"batch_size: no tensor of the example batch has {size} as its first dimension "
            f"(found {', '.join(map(str, dict.fromkeys(first)))})"
        )
    return size


def resized(batch: Arguments, size: int, new_size: int) -> Any:
    """The batch with every first dimension that is `size` made `new_size`."""

    def resize(tensor: Any) -> Any:
        if not tensor.dim() or tensor.shape[0] != size:
            return tensor
        made = torch.empty((new_size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
        return made.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, resize, batch)
