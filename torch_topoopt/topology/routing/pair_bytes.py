"""The bytes between servers as a matrix: all pairs of a large cluster at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import Pair, PairTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.plan import Demand


def demand_matrix(demand: Demand, servers: int) -> NDArray[np.int64]:
    """MP bytes [source][target] of a valid demand; the same pair twice is added up."""
    matrix = np.zeros((servers, servers), dtype=np.int64)
    listed = demand.pairs
    if isinstance(demand.pairs, PairTable):
        for everyone in demand.pairs.all_to_all:
            matrix[np.ix_(everyone.servers, everyone.servers)] += everyone.size_bytes
        listed = demand.pairs.listed
    for pair in listed:
        matrix[pair.source, pair.target] += pair.size_bytes
    np.fill_diagonal(matrix, 0)
    return matrix


def matrix_of(
    pair_bytes: Mapping[Pair, float] | NDArray[np.int64], servers: int
) -> NDArray[np.float64]:
    """Bytes [source][target] of a mapping or a matrix."""
    if not isinstance(pair_bytes, Mapping):
        return pair_bytes.astype(np.float64)
    matrix = np.zeros((servers, servers))
    for (source, target), size_bytes in pair_bytes.items():
        matrix[source, target] += size_bytes
    return matrix


def pairs_of(matrix: NDArray[np.int64]) -> dict[Pair, int]:
    """The pairs that send bytes, ascending, and how many."""
    sources, targets = np.nonzero(matrix)
    sizes = matrix[sources, targets]
    pairs = zip(sources.tolist(), targets.tolist(), strict=True)
    return dict(zip(pairs, sizes.tolist(), strict=True))


def bytes_by_offset(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """[(target - source) modulo n]: the bytes of all pairs of that offset."""
    servers = len(matrix)
    total = np.zeros(servers)
    for source in range(servers):
        total += np.roll(matrix[source], -source)
    return total
