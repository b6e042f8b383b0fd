"""A torus is recognised by its cables alone, whatever the numbers of its servers."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from torch_topoopt.topology.finder.found_torus import torus_cycles, torus_of


def _cables(rows: int, columns: int, seed: int) -> list[tuple[int, int]]:
    """Those of a torus whose servers are numbered at random."""
    number = list(range(rows * columns))
    random.Random(seed).shuffle(number)
    found = [
        (number[i * columns + j], number[other])
        for i in range(rows)
        for j in range(columns)
        for other in (i * columns + (j + 1) % columns, (i + 1) % rows * columns + j)
    ]
    random.Random(seed + 1).shuffle(found)
    return found


def _wires(pairs: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
    return Counter((min(pair), max(pair)) for pair in pairs)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(2, 2), (2, 3), (2, 5), (3, 3), (3, 4), (3, 7), (4, 4), (4, 8), (5, 6), (8, 8), (20, 25)],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_torus_of_any_numbers_has_a_grid_of_its_cables(
    rows: int, columns: int, seed: int
) -> None:
    cables = _cables(rows, columns, seed)
    grid = torus_of(rows * columns, cables)
    assert sorted(server for row in grid for server in row) == list(range(rows * columns))
    assert grid[0][0] == 0
    lines = [*grid, *zip(*grid, strict=True)]
    steps = [step for line in lines for step in pairwise((*line, line[0]))]
    assert _wires(steps) == _wires(cables)
    cycles = torus_cycles(grid)
    if cycles:
        used = [step for cycle in cycles for step in pairwise((*cycle, cycle[0]))]
        assert _wires(used) == _wires(cables)


@pytest.mark.parametrize("seed", range(5))
def test_other_graphs_of_four_cables_a_server_are_none(seed: int) -> None:
    """A torus with the ends of two cables exchanged, and two strides on a circle."""
    cables = _cables(5, 6, seed)
    (a, b), (c, d) = cables[:2]
    assert torus_of(30, [(a, d), (c, b), *cables[2:]]) == ()
    circle = [(i, (i + stride) % 23) for i in range(23) for stride in (1, 5)]
    assert torus_of(23, circle) == ()


def test_a_cable_more_or_less_is_no_torus() -> None:
    cables = _cables(4, 4, 1)
    assert torus_of(16, cables[1:]) == ()
    assert torus_of(16, [*cables, cables[0]]) == ()
