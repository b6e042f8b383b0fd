"""Two Hamiltonian cycles of a torus that share no cable (Kotzig; HammingMesh paper, appendix D)."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from support.refusals import refused

from torch_topoopt.topology.finder.torus_cycles import disjoint_cycles, has_disjoint_cycles

Cycle = tuple[int, ...]


def torus_cables(rows: int, columns: int) -> Counter[frozenset[int]]:
    """Cables between each two neighbours; a dimension of two has two."""
    cables: Counter[frozenset[int]] = Counter()
    for server in range(rows * columns):
        row, column = divmod(server, columns)
        cables[frozenset((server, row * columns + (column + 1) % columns))] += 1
        cables[frozenset((server, (row + 1) % rows * columns + column))] += 1
    return cables


def cables_of(cycle: Cycle) -> Counter[frozenset[int]]:
    return Counter(frozenset(hop) for hop in zip(cycle, (*cycle[1:], cycle[0]), strict=True))


def expect_two_cycles_on_all_cables(rows: int, columns: int) -> None:
    cycles = disjoint_cycles(rows, columns)
    for cycle in cycles:
        assert cycle[0] == 0
        assert sorted(cycle) == list(range(rows * columns)), (rows, columns)
    used = cables_of(cycles[0]) + cables_of(cycles[1])
    assert used == torus_cables(rows, columns), (rows, columns)


@pytest.mark.parametrize("rows", range(3, 25))
def test_every_torus_has_two_cycles_that_use_all_cables_once(rows: int) -> None:
    for columns in range(3, 25):
        expect_two_cycles_on_all_cables(rows, columns)


def test_so_have_larger_ones() -> None:
    random = np.random.default_rng(5)
    for rows, columns in [*random.integers(25, 120, size=(8, 2)).tolist(), [3, 1000], [1001, 4]]:
        expect_two_cycles_on_all_cables(rows, columns)


def test_a_torus_of_a_quarter_million_servers_has_them() -> None:
    first, second = disjoint_cycles(512, 512)
    hops = []
    for cycle in (first, second):
        order = np.array(cycle)
        assert np.array_equal(np.sort(order), np.arange(512 * 512))
        ends = np.stack([order, np.roll(order, -1)])
        rows, columns = np.divmod(ends, 512)
        apart = [np.abs(places[0] - places[1]) for places in (rows, columns)]
        assert set(np.minimum(apart[0], 512 - apart[0]) + np.minimum(apart[1], 512 - apart[1])) == {
            1
        }
        hops.append(ends.min(axis=0) * 512 * 512 + ends.max(axis=0))
    assert len(np.unique(np.concatenate(hops))) == 2 * 512 * 512


def is_decomposed(cables: Counter[frozenset[int]], servers: int) -> bool:
    """By exhaustion: whether some Hamiltonian cycle leaves the cables of another."""
    for rest in permutations(range(1, servers)):
        first = cables_of((0, *rest))
        if first <= cables and any(
            cables_of((0, *other)) == cables - first for other in permutations(range(1, servers))
        ):
            return True
    return False


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3), (3, 2), (2, 4)])
def test_beside_a_dimension_of_two_the_other_must_be_even(rows: int, columns: int) -> None:
    cables = torus_cables(rows, columns)
    if columns == 4:  # 7! orders, squared, are too many; the cycles themselves are proof
        expect_two_cycles_on_all_cables(rows, columns)
        return
    assert is_decomposed(cables, rows * columns) == has_disjoint_cycles(rows, columns)


def test_two_rows_have_cycles_if_columns_are_even() -> None:
    for columns in range(2, 40, 2):
        expect_two_cycles_on_all_cables(2, columns)
        expect_two_cycles_on_all_cables(columns, 2)
        assert not has_disjoint_cycles(2, columns + 1)


@pytest.mark.parametrize(
    ("rows", "columns", "tokens"),
    [
        (2, 5, ("2 x 5", 2, 5)),
        (5, 2, ("5 x 2", 5, "even")),
        (1, 6, ("dimension", 2)),
        (0, 0, ("dimension", 2)),
        (-4, 4, ("-4 x 4",)),
    ],
)
def test_a_torus_without_such_cycles_is_an_error(
    rows: int, columns: int, tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        disjoint_cycles(rows, columns)
