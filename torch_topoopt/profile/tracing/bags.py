"""Indices of bags: tensors of a batch whose sizes are not that of the batch.

`EmbeddingBag(indices, offsets)` takes the indices of all samples one after the other, and where
those of each sample begin: the size of the batch is that of the offsets. Tables may share a tensor
of offsets, one row for each, as in the reference implementation of DLRM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding_bag
from torch.overrides import TorchFunctionMode

from torch_topoopt.profile.tracing.records import storage_of, tensors

_NAMES = (
    *("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode"),
    *("sparse", "per_sample_weights", "include_last_offset"),
)


@dataclass(frozen=True)
class Bags:
    """Storages of tensors of a batch: `flat` ones hold what all samples have, one after the other,
    in their last dimension; `offsets` its beginnings, and `ended` offsets also its end."""

    flat: frozenset[int] = frozenset()
    offsets: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()

    def size_of(self, tensor: Any) -> int | None:
        """The number of samples that `tensor` is for; None where it does not say."""
        storage = storage_of(tensor)
        if storage in self.flat:
            return None
        if storage in self.offsets:
            return int(tensor.shape[-1]) - (storage in self.ended)
        return int(tensor.shape[0]) if tensor.dim() else None

    def resized_shape(self, tensor: Any, size: int, new_size: int) -> tuple[int, ...]:
        """The shape of `tensor` for `new_size` samples, where it is for `size` of them."""
        shape, storage = tuple(tensor.shape), storage_of(tensor)
        if storage in self.flat:
            return (*shape[:-1], -(-shape[-1] * new_size // size))
        if self.size_of(tensor) != size:
            return shape
        if storage in self.offsets:
            return (*shape[:-1], new_size + (storage in self.ended))
        return (new_size, *shape[1:])


def bags_of(network: Any, batch: tuple[tuple[Any, ...], dict[str, Any]]) -> Bags:
    """Those of a batch on the meta device, by what `network` calls with them; none if it fails."""
    given = {storage_of(tensor) for tensor in tensors(batch) if not tensor.is_floating_point()}
    if len(given) < 2:
        return Bags()
    seen = _SeenBags()
    args, kwargs = batch
    try:
        with torch.no_grad(), torch.device("meta"), seen:
            network(*args, **kwargs)
    except Exception:  # whatever a model raises is reported when it is traced
        return Bags()
    known = {storage_of(tensor) for tensor in tensors(batch)}
    return Bags(
        frozenset(seen.flat & known),
        frozenset(seen.offsets & known),
        frozenset(seen.ended & known),
    )


class _SeenBags(TorchFunctionMode):  # type: ignore[misc]
    """The storages of what bags are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.flat: set[int] = set()
        self.offsets: set[int] = set()
        self.ended: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is embedding_bag:
            given = dict(zip(_NAMES, args, strict=False)) | kwargs
            offsets = given.get("offsets")
            if offsets is not None:
                weights = given.get("per_sample_weights")
                self.flat |= {storage_of(t) for t in (given["input"], weights) if t is not None}
                self.offsets.add(storage_of(offsets))
                if given.get("include_last_offset"):
                    self.ended.add(storage_of(offsets))
        return func(*args, **kwargs)
