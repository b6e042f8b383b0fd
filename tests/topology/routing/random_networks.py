"""Random strongly connected networks and traffic for tests of routing."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def random_capacity(servers: int, extra: int, seed: int) -> NDArray[np.float64]:
    """A directed ring in random order and `extra` links anywhere; parallel ones add up."""
    draw = random.Random(seed)
    order = draw.sample(range(servers), servers)
    links = list(zip(order, order[1:] + order[:1], strict=True))
    links += [tuple(draw.sample(range(servers), 2)) for _ in range(extra)]  # type: ignore[misc]
    capacity = np.zeros((servers, servers))
    for pair, count in Counter(links).items():
        capacity[pair] = count
    return capacity


def random_traffic(servers: int, pairs: int, seed: int) -> NDArray[np.float64]:
    """Up to `pairs` pairs with 1 to 1000 bytes."""
    draw = random.Random(seed)
    traffic = np.zeros((servers, servers))
    for _ in range(pairs):
        traffic[tuple(draw.sample(range(servers), 2))] = draw.randint(1, 1000)
    return traffic


def adjacency(capacity: NDArray[np.float64]) -> tuple[list[list[int]], list[list[int]]]:
    """(servers that each one has a link to, servers with a link to each one), ascending."""
    count = range(len(capacity))
    table = [np.flatnonzero(capacity[s]).tolist() for s in count]
    return table, [np.flatnonzero(capacity[:, s]).tolist() for s in count]


def simple_paths(table: list[list[int]], source: int, target: int) -> list[tuple[int, ...]]:
    """All loop-free paths, by hops and then by servers."""
    found = []
    stack = [(source,)]
    while stack:
        path = stack.pop()
        if path[-1] == target:
            found.append(path)
            continue
        stack += [(*path, server) for server in table[path[-1]] if server not in path]
    return sorted(found, key=lambda path: (len(path), path))
