"""The rate of a matrix product on tensor cores, by its shape.

A kernel cuts the output into tiles, one for each processor at a time, and may cut the sum of each
tile into parts. Four effects keep it below the peak:

- power: `sustained` of the device (devices.py);
- small tiles read more operands per FLOP: a tile of r x c reaches 1 / (1 + _EDGE (1/r + 1/c));
- tiles at the borders are padded, and the last wave of tiles leaves processors idle;
- each tile takes the time of `_FILL` more elements of its sum to start and to store.

The library takes the best of these tiles, so the model does.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator

# Tiles of CUTLASS and cuBLAS. NVIDIA's guide to matrix multiplication orders them like this: 256 x
# 128 is the most efficient, 64 x 64 the least, which has two thirds of its rate.
_EDGE = 32.0
_SIDES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_RATES = [1 / (1 + _EDGE * (1 / rows + 1 / columns)) for rows, columns in _SIDES]
_TILES = [(*sides, rate / _RATES[0]) for sides, rate in zip(_SIDES, _RATES, strict=True)]
_PARTS = (1, 2, 4, 8, 16)  # of a sum
_ENOUGH_WAVES = 4  # more parts would fill processors hardly better
_FILL = 128.0  # stages of 64 before the first product and for the last store

_ELEMENT_BYTES = 2  # of activations in bf16
# kinds that multiply by one matrix of parameters; others may have many, such as experts
_ONE_MATRIX = frozenset({"linear", "conv1d", "addmm", "mm"})


class ProductShape(NamedTuple):
    """`matrices` products of (rows x inner) by (inner x columns)."""

    matrices: float
    rows: float
    columns: float
    inner: float

    @property
    def of_operand_gradient(self) -> ProductShape:
        return ProductShape(self.matrices, self.rows, self.inner, self.columns)

    @property
    def of_parameter_gradient(self) -> ProductShape:
        return ProductShape(self.matrices, self.inner, self.columns, self.rows)


def shape_of(operator: Operator, shards: float) -> ProductShape:
    """The shape of the product that `operator` computes on one of `shards` parts of the batch.

    It follows from FLOPs and bytes. One matrix of parameters also gives the size of an element,
    which is 4 bytes in the profile of a float32 model. A layer that shares another's parameters
    reads them all the same. The output of a product of activations counts as square.
    """
    half, output = operator.forward_flops / 2, max(operator.output_bytes, 1)
    read = max(operator.memory_bytes - output, 1)
    weights = operator.parameter_bytes
    activations = read - weights
    element = _ELEMENT_BYTES
    one_matrix = operator.kind.lower() in _ONE_MATRIX
    if weights == 0 or activations <= 0:
        inner = max(1.0, half * element / output)
        if one_matrix:
            both = read / (inner * element)  # rows and columns
            columns = (both + math.sqrt(max(0.0, both**2 - 4 * output / element))) / 2
            return ProductShape(1.0, max(1.0, output / element / columns / shards), columns, inner)
        side = max(1.0, 2 * inner * output / read)
        count = max(1.0, output / element / side**2)
        return ProductShape(count, max(1.0, side / shards), side, inner)
    if one_matrix and weights * output * activations > half**2 * 3**3:
        element = 4
    inner = max(1.0, half * element / output)
    columns = max(1.0, half * element / activations)
    count = max(1.0, weights / (columns * inner * element)) if not one_matrix else 1.0
    rows = output / (columns * element) / count / shards
    return ProductShape(count, max(1.0, rows), columns, inner)


def inner_bytes(operator: Operator) -> float:
    """Bytes that an operator of several products, such as an MLP, moves between them.

    It saves these tensors besides its operands. No product hides the kernels that move them, which
    move gradients, too, in the backward pass.
    """
    if not operator.parameter_bytes or operator.kind.lower() in _ONE_MATRIX:
        return 0.0
    read = sum(operand.size_bytes for operand in operator.operands)
    return max(0.0, operator.saved_bytes - read)


def is_aligned(shape: ProductShape) -> bool:
    """Whether rows of both matrices begin at multiples of 16 bytes in bf16."""
    sizes = [round(size) for size in (shape.columns, shape.inner)]
    return all(
        size % 8 == 0 or abs(size - of) > 1e-3 for size, of in zip(sizes, shape[2:], strict=True)
    )


@lru_cache(maxsize=1 << 16)
def utilisation(shape: ProductShape, processors: int, speed: float = 1.0) -> float:
    """The fraction of the sustained rate that a product reaches, near 1 for large ones.

    `speed` is the peak over that of bf16; narrower formats start and store no faster.
    """
    fill, best = _FILL * speed, 0.0
    for rows, columns, rate in _TILES:
        tiles = shape.matrices * math.ceil(shape.rows / rows) * math.ceil(shape.columns / columns)
        useful = rate * shape.matrices * shape.rows * shape.columns / (tiles * rows * columns)
        for parts in _PARTS:
            waves = tiles * parts / processors
            inner = shape.inner / parts
            best = max(best, useful * waves / math.ceil(waves) * inner / (inner + fill))
            if waves > _ENOUGH_WAVES:
                break
    return best
