"""Bytes divided among routes load the busiest link as a linear program over all paths does."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from support.matrices import zipf

from torch_topoopt import _core
from torch_topoopt.topology.routing.optimal_routes import optimal_routes

Edge = tuple[int, int, float]


def circulant(servers: int, strides: tuple[int, ...]) -> list[Edge]:
    return [(s, (s + stride) % servers, 1.0) for s in range(servers) for stride in strides]


def random_edges(chooser: random.Random) -> tuple[int, list[Edge]]:
    """A one-way ring and further links, at unequal rates."""
    servers = chooser.randint(3, 12)
    rates = chooser.choice([(1.0,), (10.0, 25.0, 100.0)])
    ends = {(s, (s + 1) % servers) for s in range(servers)}
    for _ in range(servers * chooser.randint(0, 3)):
        source, target = chooser.sample(range(servers), 2)
        ends.add((source, target))
    return servers, [(a, b, chooser.choice(rates)) for a, b in sorted(ends)]


def ratio_to_optimum(servers: int, edges: list[Edge], matrix: np.ndarray) -> float:
    pairs = [(int(a), int(b), float(matrix[a, b])) for a, b in np.argwhere(matrix)]
    capacity, loads = np.zeros((servers, servers)), np.zeros((servers, servers))
    for source, target, rate in edges:
        capacity[source, target] = rate
    shares = _core.balanced_shares(servers, edges, pairs)
    for (source, target, size), paths in zip(pairs, shares, strict=True):
        assert sum(share for _, share in paths) == pytest.approx(1)
        for path, share in paths:
            assert (path[0], path[-1]) == (source, target)
            assert len(set(path)) == len(path)
            for hop in pairwise(path):
                assert capacity[hop] > 0
                loads[hop] += share * size
    busiest = (loads[capacity > 0] / capacity[capacity > 0]).max()
    found = optimal_routes(capacity, matrix.astype(float), method="exact")
    return float(busiest / found.utilisation)


@pytest.mark.parametrize("exponent", [0.4, 1.0])
@pytest.mark.parametrize(
    ("servers", "strides"),
    [(8, (1, 7)), (8, (1, 3)), (8, (1, 3, 5, 7)), (12, (1, 5, 7, 11)), (16, (1, 4, 12, 15))],
)
def test_circulants_reach_the_optimum(
    servers: int, strides: tuple[int, ...], exponent: float
) -> None:
    edges = circulant(servers, strides)
    for seed in range(3):
        assert ratio_to_optimum(servers, edges, zipf(servers, exponent, 10**6, seed)) < 1.01


def test_two_hot_destinations_reach_the_optimum() -> None:
    matrix = np.ones((12, 12), dtype=np.int64) - np.eye(12, dtype=np.int64)
    matrix[:, :2] *= 4
    assert ratio_to_optimum(12, circulant(12, (1, 5, 7, 11)), matrix) < 1.01


def test_random_networks_reach_the_optimum() -> None:
    chooser = random.Random(43)
    ratios = []
    for seed in range(40):
        servers, edges = random_edges(chooser)
        matrix = zipf(servers, 1.5, 10**6, seed)
        matrix[np.random.default_rng(seed).random(matrix.shape) < 0.3] = 0
        ratios.append(ratio_to_optimum(servers, edges, matrix))
    assert max(ratios) < 1.05
    assert np.mean(ratios) < 1.005


def test_no_bytes_have_no_shares() -> None:
    assert _core.balanced_shares(3, circulant(3, (1, 2)), []) == []
