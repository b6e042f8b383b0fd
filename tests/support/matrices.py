"""Matrices of bytes, such as all-to-alls of a mixture of experts have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def zipf(servers: int, exponent: float, pair_bytes: int, seed: int = 0) -> NDArray[np.int64]:
    """Every server's bytes for the others follow Zipf's law, in an order of its own; `pair_bytes`
    is the mean."""
    random = np.random.default_rng(seed)
    shares = np.arange(1.0, servers) ** -exponent
    matrix = np.zeros((servers, servers))
    for server in range(servers):
        matrix[server, np.arange(servers) != server] = random.permutation(shares)
    return (matrix / matrix.sum() * servers * (servers - 1) * pair_bytes).astype(np.int64)
