"""Finds the dimensions besides samples along which PyTorch's operators may be split.

Features are the last dimension of what linear layers, embeddings and layer norms make, and the
second of what convolutions make (samples, channels, height, width). Elementwise operators take the
layout of the tensor they read. Operators between linear layers and attention are split by heads;
heads that share keys and values stay together. Operators that are not listed here are split by
samples only; so are convolutions by image positions unless their kernel is 1 x 1, for the others
need rows of the neighbouring part (a halo). Mixtures of experts: see experts.py.

A joint projection of queries, keys and values, or of a gate and what it multiplies, has sections
(sections.py). One of several heads is assumed to store the features of one head in one part.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from torch_topoopt.op_graph import Split
from torch_topoopt.profile.tracing.heads import heads_read, norm_dimensions, reads_whole_heads
from torch_topoopt.profile.tracing.records import ATTENTION, CAUSAL_ATTENTION, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch_topoopt.op_graph import SplitDimension
    from torch_topoopt.profile.tracing.records import Read, TracedOperator

_Needs = Literal["whole", "part"]
_FEATURES_LAST = frozenset(
    {
        *("Linear", "Conv1D", "Embedding", "EmbeddingBag"),
        *("LayerNorm", "RMSNorm", "MultiheadAttention"),
    }
)
# Beginnings of names. The Conv1D of transformers is a linear layer: its features are last.
_FEATURES_SECOND = (
    *("Conv1d", "Conv2d", "Conv3d", "ConvTranspose"),
    *("BatchNorm", "InstanceNorm", "GroupNorm"),
)
# classes of modules and names of functions that are elementwise
_ATTENTION = frozenset({ATTENTION, CAUSAL_ATTENTION})
_COPIES = frozenset({"flatten", "reshape", "contiguous", "clone"})
_ELEMENTWISE_NAMES = """
    ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Sigmoid Tanh Softplus Softsign Hardtanh
    Hardsigmoid Hardswish Dropout
    relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid tanh softplus softsign hardtanh
    hardsigmoid hardswish dropout clamp clip exp log sqrt rsqrt square abs neg
    add iadd sub isub mul imul div truediv itruediv
"""
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())


def shared_parameters(operators: Sequence[TracedOperator]) -> frozenset[int]:
    """The storages of parameters that more than one operator reads: they are not split."""
    owner = {storage_of(p): operator for operator in operators for p in operator.parameters}
    return frozenset(
        storage
        for operator in operators
        for storage, _, _ in operator.reads
        if owner.get(storage, operator) is not operator
    )


def has_elementwise_kind(traced: TracedOperator) -> bool:
    """Whether it treats all elements alike. transformers has classes such as SiLUActivation."""
    return traced.kind in _ELEMENTWISE or traced.kind.endswith("Activation")


def is_elementwise(traced: TracedOperator) -> bool:
    """Whether all elements are treated alike, and what it reads of operators has its own shape."""
    return has_elementwise_kind(traced) and _reads_its_own_shape(traced)


def split_dimensions(
    traced: TracedOperator,
    twice: TracedOperator | None,
    shared: frozenset[int] = frozenset(),
    sections: Mapping[int, tuple[int, ...]] | None = None,
) -> tuple[Split, ...]:
    """The dimensions by which operator `traced` may be split, beside its samples.

    `twice` is the same operator with a batch of twice the size: it shows the dimension of the
    output that holds samples. An operator that reads one of the `shared` parameters is not split by
    parameters. `sections` are those of the features of each operator that has several.
    """
    sections = sections or {}
    if twice is None or len(traced.shapes) != 1 or len(twice.shapes) != 1:
        return ()
    shape, doubled = traced.shapes[0], twice.shapes[0]
    grown = [i for i, (a, b) in enumerate(zip(shape, doubled, strict=False)) if a != b]
    if len(shape) != len(doubled) or len(grown) != 1:
        return ()
    found = list(_experts(traced, grown[0]))
    if grown == [0] and len(shape) > 1 and not traced.stacks:
        found += _known(traced, traced.module, sections)
    its = sections.get(traced.index)
    shares = any(storage in shared for storage, _, _ in traced.reads)
    splits = (
        Split(dimension, math.gcd(*its), operands, its)  # 0 parts of no sections
        if its is not None and dimension == "columns" and sum(its) in (0, degree)
        else Split(dimension, degree, operands)
        for dimension, degree, operands in found
        if dimension == "attribute" or not shares
    )
    return tuple(split for split in splits if split.max_degree > 1)


_Found = tuple["SplitDimension", int, _Needs]


def _known(
    traced: TracedOperator, module: Any | None, sections: Mapping[int, tuple[int, ...]]
) -> Iterator[_Found]:
    shape = traced.shapes[0]
    if (features := _linear_features(traced)) is not None:
        inputs, outputs = features
        yield "columns", outputs, "whole"
        yield "rows", inputs, "part"
        yield from _positions(shape, len(shape) > 2)
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        yield "columns", module.embedding_dim, "whole"
        if getattr(module, "mode", "sum") != "max":  # bags are split by ranges of rows, then added
            yield "rows", module.num_embeddings, "whole"
        yield from _positions(shape, isinstance(module, nn.Embedding) and len(shape) > 2)
    elif isinstance(module, nn.modules.conv._ConvNd):
        yield from _convolution(module, shape)
    elif traced.heads is not None and traced.kind not in _ATTENTION:
        yield from _by_head(traced)
    elif (normed := norm_dimensions(traced)) is not None:
        yield from _positions(shape, len(shape) > 1 + normed)
    elif isinstance(module, nn.GroupNorm):
        yield "columns", module.num_groups, "part"
    elif isinstance(module, nn.MultiheadAttention):  # each part has some heads of all projections
        alone = module.bias_k is None and not module.add_zero_attn
        yield "rows", module.num_heads if alone else 1, "whole"
    elif _has_channels(traced.kind) and len(shape) > 2:  # norms over channels and pooling
        yield "columns", shape[1], "part"
    elif traced.kind in _ATTENTION and len(shape) == 4:
        heads = (count for _, count in filter(None, heads_read(traced)))
        together = reads_whole_heads(traced, 1)
        yield "columns", 1 if together else min(heads, default=shape[1]), "part"
        yield "attribute", shape[2], "whole"  # queries; each needs all keys and values
    elif traced.kind in _COPIES:
        yield from _heads_side_by_side(traced)
    elif is_elementwise(traced):
        yield from _elementwise(traced, sections)


def _linear_features(traced: TracedOperator) -> tuple[int, int] | None:
    """Those of the inputs and of the result of a linear layer; transformers has its own Conv1D."""
    module = traced.module
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if module is None or traced.kind != "Conv1D":
        return None
    inputs, outputs = module.weight.shape
    return inputs, outputs


def _by_head(traced: TracedOperator) -> Iterator[_Found]:
    """An operator on (samples, heads, positions, width), or with positions before heads."""
    assert traced.heads is not None
    dimension, count = traced.heads
    yield "columns", count, "part"
    at = -2 if dimension == 1 else 1
    positions = traced.shapes[0][at]
    reads = [read.shape for read in traced.reads.values() if read.producer is not None]
    if traced.forward_flops == 0 and all(shape[at] == positions for shape in reads):
        yield "attribute", positions, "part"


def _heads_side_by_side(traced: TracedOperator) -> Iterator[_Found]:
    """A copy of what attention made, (samples, heads, positions, width), with heads inside of
    positions: they stay together."""
    shape = traced.shapes[0]
    makers = [r.producer for r in traced.reads.values() if r.producer is not None]
    if len(makers) != 1 or makers[0].kind not in _ATTENTION or len(makers[0].shapes[0]) != 4:
        return
    samples, heads, positions, width = makers[0].shapes[0]
    if shape in ((samples, positions, heads, width), (samples, positions, heads * width)):
        yield "columns", heads, "part"
        yield "attribute", positions, "part"


def _positions(shape: tuple[int, ...], has_positions: bool) -> Iterator[_Found]:
    if has_positions:
        yield "attribute", shape[1], "part"


def _convolution(module: Any, shape: tuple[int, ...]) -> Iterator[_Found]:
    if module.groups == 1:
        yield "columns", module.out_channels, "whole"
        yield "rows", module.in_channels, "part"
    else:
        yield "columns", module.groups, "part"
    no_halo = set(module.kernel_size) == {1} and set(module.padding) == {0}
    if no_halo and not module.transposed and len(shape) > 2:
        yield "attribute", shape[2], "part"


def _has_channels(kind: str) -> bool:
    return kind.startswith(_FEATURES_SECOND) or "Pool" in kind


def _reads_its_own_shape(traced: TracedOperator) -> bool:
    """Whether every tensor that it takes from an operator is as large as what it makes."""
    sizes = {r.size_bytes for r in traced.reads.values() if r.producer is not None}
    return sizes == {traced.output_bytes} and not traced.parameters


def _elementwise(
    traced: TracedOperator, sections: Mapping[int, tuple[int, ...]]
) -> Iterator[_Found]:
    shape = traced.shapes[0]
    axis = 1 if len(shape) == 2 else _feature_axis(traced, sections)
    if axis is None:
        return
    yield "columns", shape[axis], "part"
    if len(shape) > 2:
        yield "attribute", shape[2 if axis == 1 else 1], "part"


def _feature_axis(traced: TracedOperator, sections: Mapping[int, tuple[int, ...]]) -> int | None:
    """The dimension of its output that holds features, if its operands show it."""
    shape = traced.shapes[0]
    seen = {id(traced)}
    waiting = [traced]
    while waiting:
        for read in waiting.pop().reads.values():
            producer = read.producer
            if producer is None or id(producer) in seen or len(producer.shapes) != 1:
                continue
            if sections.get(producer.index) and _is_slice(read, producer):
                return len(shape) - 1
            if producer.shapes != (shape,):
                continue
            if producer.kind in _FEATURES_LAST:
                return len(shape) - 1
            if _has_channels(producer.kind):
                return 1
            seen.add(id(producer))
            if has_elementwise_kind(producer):
                waiting.append(producer)
    return None


def _is_slice(read: Read, producer: TracedOperator) -> bool:
    """Whether `read` is a range of the last dimension of what `producer` makes."""
    return read.shape[:-1] == producer.shapes[0][:-1] and read.strides[-1:] == (1,)


def _experts(traced: TracedOperator, samples: int) -> Iterator[_Found]:
    """What experts compute apart, and one product of theirs also by its features.

    Parameters and output of an operator without a product may have the experts as first dimension.
    """
    shape = traced.shapes[0]
    if traced.experts is not None:
        yield "experts", traced.experts, "part"
        if traced.module is None and len(traced.stacks) == len(traced.parameters) == 1:
            _, *sides = next(iter(traced.stacks.values()))
            yield "columns", shape[-1], "whole"
            yield "rows", sides[0] * sides[1] // shape[-1], "part"
    elif samples > 0 and len(shape) > 2 and traced.parameters:
        first = {p.shape[0] if p.dim() > 1 else 0 for p in traced.parameters}
        if first == {shape[0]}:
            yield "experts", shape[0], "part"
