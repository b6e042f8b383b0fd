"""The batch that a model is called with, on the meta device, and at other sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torch_topoopt.profile.tracing.bags import Bags
from torch_topoopt.profile.tracing.records import ProfileError, storage_of, tensors

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
NO_BAGS = Bags()


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


def batch_size_of(batch: Arguments, wanted: int | None, bags: Bags = NO_BAGS) -> int:
    """The number of samples of `batch`: `wanted`, where a tensor has as many, else that of its
    offsets of bags, else that of its first tensor. Raises ProfileError."""
    held = list(tensors(batch))
    held.sort(key=lambda tensor: storage_of(tensor) not in bags.offsets)
    first = [size for t in held if (size := bags.size_of(t)) is not None]
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


def resized(batch: Arguments, size: int, new_size: int, bags: Bags = NO_BAGS) -> Any:
    """The batch with every first dimension that is `size` made `new_size`, and its `bags` with
    offsets for as many samples and indices in proportion."""

    def resize(tensor: Any) -> Any:
        shape = bags.resized_shape(tensor, size, new_size)
        if shape == tuple(tensor.shape):
            return tensor
        made = torch.empty(shape, dtype=tensor.dtype, device="meta")
        return made.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, resize, batch)
