"""The inputs of every rank and the expected results: small integers, so that sums are exact."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import reduce as fold

import torch
import torch.distributed as dist

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
REDUCIBLE = (*INTEGERS, *FLOATS, *COMPLEX, torch.bool)
MOVABLE = (*REDUCIBLE, *FLOAT8)

_PERIOD, _STEP = 15, 7
_INVERSE_STEP = pow(_STEP, -1, _PERIOD)
_PREMUL_FACTOR = 0.5
_SENTINEL = 3

LAYOUTS = ("flat", "offset", "strided", "transposed", "channels_last", "scalar")


def reduce_ops_of(dtype: torch.dtype) -> tuple[str, ...]:
    """The reductions that are defined for a dtype."""
    if dtype.is_complex:
        return ("SUM", "AVG", "PREMUL_SUM")
    everywhere = ("SUM", "PRODUCT", "MIN", "MAX")
    if dtype.is_floating_point:
        return (*everywhere, "AVG", "PREMUL_SUM")
    bitwise = (*everywhere, "BAND", "BOR", "BXOR")
    return bitwise if dtype == torch.bool else (*bitwise, "AVG")


def reduce_op(name: str) -> object:
    if name == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(_PREMUL_FACTOR)
    return getattr(dist.ReduceOp, name)


@functools.cache
def _pattern(size: int) -> torch.Tensor:
    """0, 7, 14, 6, ...: steps of 7 modulo 15. Blocks are parts of it: most of a test's time went
    into remainders."""
    return (torch.arange(size) * _STEP % _PERIOD).to(torch.int8)


def block(
    member: int, size: int, dtype: torch.dtype, salt: int = 0, op: str = "SUM"
) -> torch.Tensor:
    """The input of `member`, one-dimensional; every rank can compute it.

    Eight of them sum to at most 112 in absolute value, and multiply to at most 256.
    """
    first = (member * 31 + salt * 13) * _INVERSE_STEP % _PERIOD
    numbers = _pattern(1 << (size + _PERIOD).bit_length())[first : first + size]
    if op == "PRODUCT":
        numbers = 1 + numbers % 2
    elif dtype.is_complex:
        return torch.complex((numbers - 7).double(), (numbers * 4 % 15 - 7).double()).to(dtype)
    elif dtype == torch.bool:
        numbers = numbers % 2
    elif dtype.is_signed:
        numbers = numbers - 7
    return numbers.to(dtype)


def _combine(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype == torch.bool:
        name = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}.get(name, name)
    return {
        "SUM": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[name](a, b)


def reduced(blocks: list[torch.Tensor], name: str) -> torch.Tensor:
    """The result of the reduction over all members' blocks."""
    if name == "PREMUL_SUM":
        return fold(torch.add, [b * _PREMUL_FACTOR for b in blocks])
    if name == "AVG":
        total = fold(torch.add, blocks)
        exact = total.dtype.is_floating_point or total.dtype.is_complex
        return torch.div(total, len(blocks), rounding_mode=None if exact else "trunc").to(
            total.dtype
        )
    return fold(lambda a, b: _combine(name, a, b), blocks)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    if flat.stride() != (1,):
        flat = torch.empty(flat.numel(), dtype=flat.dtype).copy_(flat)
    return flat.view(torch.uint8)


@dataclass(frozen=True)
class Placed:
    """A tensor of some layout, and the memory around it that must not be written."""

    tensor: torch.Tensor
    around: tuple[torch.Tensor, ...] = ()

    def check(self, expected: torch.Tensor, what: str) -> None:
        assert torch.equal(bits(self.tensor), bits(expected)), (
            f"{what}: got {_excerpt(self.tensor)}, expected {_excerpt(expected)}"
        )
        for part in self.around:
            untouched = torch.full(part.shape, _SENTINEL).to(part.dtype)
            assert torch.equal(bits(part), bits(untouched)), f"{what}: wrote outside the tensor"


def _excerpt(tensor: torch.Tensor) -> str:
    head = tensor.detach().reshape(-1)[:12]
    head = head if tensor.is_complex() else head.double()
    return f"{head.tolist()}{'...' if tensor.numel() > 12 else ''} of {tuple(tensor.shape)}"


def _smallest_factor(size: int) -> int:
    return next((f for f in (2, 3, 5, 7) if size % f == 0 and size > f), 1) if size else 1


def placed(values: torch.Tensor, layout: str) -> Placed:
    """The values, in row-major order of a new tensor that lies in memory as `layout` says."""
    size, factor = values.numel(), _smallest_factor(values.numel())
    if layout == "offset":
        base = torch.full((size + 3,), _SENTINEL).to(values.dtype)
        base[1 : size + 1] = values
        return Placed(base[1 : size + 1], (base[:1], base[size + 1 :]))
    if layout == "strided":
        base = torch.full((size, 2), _SENTINEL).to(values.dtype)
        base[:, 0] = values
        return Placed(base[:, 0], (base[:, 1],))
    if layout == "transposed":
        return Placed(values.view(factor, size // factor).t().contiguous().t())
    if layout == "channels_last":
        image = values.reshape(1, factor, size // factor, 1)
        return Placed(image.clone(memory_format=torch.channels_last))
    if layout == "scalar":
        return Placed(values.clone().reshape(()))
    return Placed(values.clone())


def blank(size: int, dtype: torch.dtype, layout: str) -> Placed:
    """A buffer to receive `size` elements."""
    return placed(torch.full((size,), _SENTINEL + 1).to(dtype), layout)
