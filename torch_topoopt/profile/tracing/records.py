"""The records of a trace: operators and tensors."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

Region = tuple[int, int, int]  # storage, offset in elements, bytes
Heads = tuple[int, int]  # the dimension that holds attention heads, and how many can be separated

ATTENTION = "scaled_dot_product_attention"
CAUSAL_ATTENTION = f"causal_{ATTENTION}"  # a kernel skips half of the FLOPs that are counted


class ProfileError(ValueError):
    """The model cannot be traced; the message says what it did and in which module."""


@dataclass
class Read:
    """A tensor that an operator reads and did not make itself.

    `producer` is None for parameters, buffers, constants and the batch. `touched_bytes` is what
    really passes through memory (fewer bytes than `size_bytes` for a table lookup). `shape` and
    `strides` are those by which it is read first.
    """

    producer: TracedOperator | None
    size_bytes: int
    touched_bytes: int
    differentiable: bool
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass
class TracedOperator:
    """The record of one operator.

    `module` is the leaf module that it is a call of, if it is one. `shapes` are those of its
    outputs, `strides` those of the first. `heads` says where its only output has attention heads,
    and `experts` how many experts it computes apart. `stacks` are the shapes of the parameters, by
    storage, that it multiplies with as stacks of matrices.
    """

    name: str
    kind: str
    module: Any = None
    index: int = -1
    forward_flops: int = 0
    backward_flops: int = 0
    output_bytes: int = 0
    works: bool = False  # did more than make views
    reached: bool = False  # the backward pass comes through here
    shapes: tuple[tuple[int, ...], ...] = ()
    strides: tuple[int, ...] = ()
    heads: Heads | None = None
    experts: int | None = None
    stacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    reads: dict[Region, Read] = field(default_factory=dict)
    writes: dict[int, Any] = field(default_factory=dict)
    saved: set[Region] = field(default_factory=set)
    parameters: list[Any] = field(default_factory=list)  # those that no earlier operator uses
    first_node: int = 0
    function_node: int | None = None

    def gradient_bytes(self, read: Read) -> int:
        """Bytes of gradient that the backward pass returns for `read`."""
        return read.size_bytes if self.reached and read.differentiable else 0

    def sizes(self) -> list[int]:
        """Everything about this operator that grows with the batch."""
        return [
            self.forward_flops,
            self.backward_flops,
            *(read.size_bytes for read in self.reads.values() if read.producer is not None),
        ]


def shared_tensors(operators: Sequence[TracedOperator]) -> dict[tuple[int, Region], int]:
    """The tensors that several of `operators` read, by index of their producer and region.

    Those of one producer are numbered from 1 on, in the order in which they are read first.
    """
    readers = Counter(
        (read.producer.index, region)
        for operator in operators
        for region, read in operator.reads.items()
        if read.producer is not None
    )
    numbers: dict[tuple[int, Region], int] = {}
    of_producer: Counter[int] = Counter()
    for tensor, count in readers.items():
        if count > 1:
            of_producer[tensor[0]] += 1
            numbers[tensor] = of_producer[tensor[0]]
    return numbers


class Span(NamedTuple):
    """The call of a module: its path, its class, and operators begin..end - 1, which ran in it."""

    path: str
    kind: str
    begin: int
    end: int


def tensors(value: Any) -> list[Any]:
    """All tensors in nested mappings, sequences and dataclasses, in order."""
    found: list[Any] = []
    _add_tensors(value, found)
    return found


def _add_tensors(value: Any, found: list[Any]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif type(value) in _WITHOUT_TENSORS:
        return
    elif isinstance(value, tuple | list):
        for item in value:
            _add_tensors(item, found)
    elif isinstance(value, Mapping):
        for item in value.values():
            _add_tensors(item, found)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            _add_tensors(item, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            _add_tensors(getattr(value, entry.name, None), found)


# the common ones, because testing for Mapping, Sequence and dataclass is slow
_WITHOUT_TENSORS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


def check_tensor(tensor: Any, what: str) -> None:
    """Raises ProfileError unless a trace can follow `tensor`; `what` says who reads or makes it."""
    if tensor.layout is not torch.strided:
        raise ProfileError(f"{what} a {tensor.layout} tensor; only dense tensors can be traced")
    if tensor.device.type != "meta" and tensor.dim():
        raise ProfileError(
            f"{what} a real tensor on {tensor.device} of shape {tuple(tensor.shape)}; make it "
            "a parameter or a buffer, or create it on the device of the input"
        )


def storage_of(tensor: Any) -> int:
    """Identity of the memory behind a tensor, shared by all its views."""
    return int(tensor.untyped_storage()._cdata)


def region_of(tensor: Any) -> Region:
    """Identity and size of the elements behind a tensor; a dimension of stride 0 repeats them."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else min(size, 1)
    size_bytes = min(elements * tensor.element_size(), tensor.untyped_storage().nbytes())
    return storage_of(tensor), tensor.storage_offset(), size_bytes


@cache
def _mutated_arguments(operation: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (i, argument.name)
        for i, argument in enumerate(operation._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def mutated_by(operation: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that `operation` writes in place."""
    return [
        tensor
        for position, name in _mutated_arguments(operation)
        for tensor in tensors(args[position] if position < len(args) else kwargs.get(name))
    ]


def is_part(tensor: Any) -> bool:
    """Whether a tensor is a view of only some of its storage."""
    return region_of(tensor)[2] < int(tensor.untyped_storage().nbytes())


@cache
def only_uses_shape(operation: Any) -> bool:
    """Whether an ATen operation reads no elements of its inputs, e.g. zeros_like."""
    name = str(operation._schema.name).removeprefix("aten::")
    return name.endswith("_like") or name.startswith("new_")


def flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """FLOPs of one ATen operation by PyTorch's registry; 0 for what it does not list."""
    products = _grouped_products(func)
    if products:
        return products * _grouped_flops(args[0], args[1])
    count = flop_registry.get(func._overloadpacket)
    return int(count(*args, **kwargs, out_val=result)) if count else 0


# The product of a mixture of experts, which PyTorch's registry does not list.
_GROUPED_PRODUCTS = {
    getattr(torch.ops.aten, name) for name in ("_grouped_mm",) if hasattr(torch.ops.aten, name)
}


# transformers' own, of types that it does not support, and the products that each computes
_OTHER_GROUPED_PRODUCTS = {
    "transformers::grouped_mm_fallback": 1,
    "transformers::grouped_mm_fallback_backward": 2,
}
_BATCHED_PRODUCTS = {torch.ops.aten.bmm, torch.ops.aten.baddbmm}


def _grouped_products(func: Any) -> int:
    if func._overloadpacket in _GROUPED_PRODUCTS:
        return 1
    return _OTHER_GROUPED_PRODUCTS.get(func._schema.name, 0)


def multiplies_stacks(func: Any) -> bool:
    """Whether an operation multiplies with stacks of matrices."""
    return func._overloadpacket in _BATCHED_PRODUCTS or _grouped_products(func) == 1


def _grouped_flops(a: Any, b: Any) -> int:
    """Of matrices whose rows, columns or inner dimension are shared out among groups.

    Every group has its part of the dimension that both know only as a whole, so a factor with a
    dimension of its own for the groups counts once.
    """
    if a.dim() == 3 and b.dim() == 2:
        return 2 * int(a.shape[1] * a.shape[2] * b.shape[1])
    return 2 * int(a.numel() * b.shape[-1])
