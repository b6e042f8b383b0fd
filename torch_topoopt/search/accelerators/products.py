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
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator

# Tiles of CUTLASS and cuBLAS. NVIDIA's guide to matrix multiplication orders them like this: 256 x
# 128 is the most efficient, 64 x 64 the least.
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_PARTS = (1, 2, 4, 8, 16)  # of a sum
_EDGE = 32.0  # 64 x 64 has two thirds of the rate of 256 x 128
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
    which is 4 bytes in the profile of a float32 model. Without parameters, of a product of
    activations, the output counts as square.
    """
    half, output = operator.forward_flops / 2, max(operator.output_bytes, 1)
    read = max(operator.memory_bytes - output, 1)
    weights = operator.parameter_bytes
    activations = read - weights
    if weights == 0 or activations <= 0:
        inner = half * _ELEMENT_BYTES / output
        side = max(1.0, 2 * inner * output / read)
        count = max(1.0, output / _ELEMENT_BYTES / side**2)
        return ProductShape(count, max(1.0, side / shards), side, max(1.0, inner))
    element = float(_ELEMENT_BYTES)
    if operator.kind.lower() in _ONE_MATRIX:
        element = (weights * output * activations / half**2) ** (1 / 3)
    inner = max(1.0, half * element / output)
    columns = max(1.0, half * element / activations)
    count = max(1.0, weights / (columns * inner * element))
    rows = output / (columns * element) / count / shards
    return ProductShape(count, max(1.0, rows), columns, inner)


@lru_cache(maxsize=1 << 16)
def utilisation(shape: ProductShape, processors: int, speed: float = 1.0) -> float:
    """The fraction of the sustained rate that a product reaches, near 1 for large ones.

    `speed` is the peak over that of bf16; narrower formats start and store no faster.
    """
    return max(
        _with_tile(shape, processors, _FILL * speed, tile, parts)
        for tile, parts in product(_TILES, _PARTS)
    )


def _with_tile(
    shape: ProductShape, processors: int, fill: float, tile: tuple[int, int], parts: int
) -> float:
    rows, columns = tile
    tiles = shape.matrices * math.ceil(shape.rows / rows) * math.ceil(shape.columns / columns)
    useful = shape.matrices * shape.rows * shape.columns / (tiles * rows * columns)
    waves = tiles * parts / processors
    inner = shape.inner / parts
    busy = waves / math.ceil(waves) * inner / (inner + fill)
    return useful * busy * _rate(tile) / _rate(_TILES[0])


def _rate(tile: tuple[int, int]) -> float:
    return 1 / (1 + _EDGE * (1 / tile[0] + 1 / tile[1]))
