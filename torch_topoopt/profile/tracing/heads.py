"""Finds the dimension of an operator's result that holds attention heads.

A linear layer makes [samples, positions, features]. A view of it makes two dimensions of features:
heads and the features of each. Operators without parameters, and norms of each head, keep heads
apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch_topoopt.profile.tracing.records import Heads, Read, TracedOperator


def heads_of(traced: TracedOperator) -> Heads | None:
    """The heads in what `traced` makes, if it computes each from those of its operands.

    The producers of its operands have their `heads`.
    """
    if len(traced.shapes) != 1 or len(traced.shapes[0]) != 4 or not _keeps_heads(traced):
        return None
    found = heads_read(traced)
    if not found or None in found or len({heads[0] for heads in found if heads}) != 1:
        return None
    dimension, count = min(heads for heads in found if heads)
    if traced.shapes[0][dimension] % count or reads_whole_heads(traced, dimension):
        return None
    return dimension, count


def reads_whole_heads(traced: TracedOperator, dimension: int) -> bool:
    """Whether `traced` reads a constant with values for each head, such as a bias of positions:
    parts of the heads would need parts of it. The result has heads in `dimension`."""
    shape = traced.shapes[0]
    heads = {shape[dimension], shape[0] * shape[dimension]} - {1}
    constants = [read.shape for read in traced.reads.values() if read.producer is None]
    missing = (None,) * len(shape)
    return any((*missing, *its)[-len(shape) :][dimension] in heads for its in constants)


def heads_read(traced: TracedOperator) -> list[Heads | None]:
    """The heads in each tensor that `traced` reads of other operators."""
    return [
        _heads_in(read, read.producer)
        for read in traced.reads.values()
        if read.producer is not None
    ]


def norm_dimensions(traced: TracedOperator) -> int | None:
    """The number of last dimensions that a layer norm or RMS norm runs over; None for no norm.

    transformers has classes of its own, such as LlamaRMSNorm, with a weight for each feature.
    """
    if isinstance(traced.module, nn.LayerNorm | nn.RMSNorm):
        return len(traced.module.normalized_shape)
    if traced.module is None or not traced.kind.endswith(("LayerNorm", "RMSNorm")):
        return None
    shapes = {tuple(parameter.shape) for parameter in traced.module.parameters()}
    return 1 if shapes == {traced.shapes[0][-1:]} else None


def _keeps_heads(traced: TracedOperator) -> bool:
    if (normed := norm_dimensions(traced)) is not None:
        return normed == 1
    return not traced.parameters and (traced.module is None or not [*traced.module.parameters()])


def _heads_in(read: Read, producer: TracedOperator) -> Heads | None:
    strides = read.strides
    if producer.heads is not None:
        dimension, count = producer.heads
        stride, size = producer.strides[dimension], producer.shapes[0][dimension]
        if _joins_samples(read, producer, dimension):
            return dimension, count
    elif len(producer.shapes) == 1 and len(producer.shapes[0]) == 3:
        features = producer.shapes[0][-1]
        stride = max((s for s in strides if 1 < s < features), default=0)
        if stride == 0:
            return None
        count = size = read.shape[strides.index(stride)]
    else:
        return None
    at = strides.index(stride) if stride in strides else 0
    return (at, count) if at in (1, 2) and read.shape[at] == size else None


def _joins_samples(read: Read, producer: TracedOperator, dimension: int) -> bool:
    """Whether it has one dimension of samples and heads, and the others of what `producer` makes:
    so a product of matrices reads them."""
    if dimension != 1:
        return False
    samples, heads, *others = producer.shapes[0]
    stride, *other_strides = producer.strides[1:]
    return read.shape == (samples * heads, *others) and read.strides == (stride, *other_strides)
