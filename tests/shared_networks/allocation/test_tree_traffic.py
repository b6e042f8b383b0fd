"""What crosses the upper levels of trees, against a count of every pair and every ring edge."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_topoopt.shared_networks.allocation.boards import SubMesh
from torch_topoopt.shared_networks.allocation.tree_traffic import (
    TreeBytes,
    all_reduce_bytes,
    all_to_all_bytes,
    total,
)

PLACES = st.sets(st.integers(0, 20), min_size=1, max_size=6).map(lambda s: tuple(sorted(s)))


@given(PLACES, PLACES, st.integers(1, 8))
def test_an_all_to_all_is_that_of_every_pair(
    rows: tuple[int, ...], columns: tuple[int, ...], per_leaf: int
) -> None:
    own = SubMesh(rows, columns)
    entering = upper = 0
    for (r, c), (s, d) in product(own.boards(), repeat=2):
        entering += (r != s) + (c != d)
        upper += (r // per_leaf != s // per_leaf) + (c // per_leaf != d // per_leaf)
    found = all_to_all_bytes(own, per_leaf)
    assert found.entering == pytest.approx(entering / own.size)
    assert found.upper == pytest.approx(upper / own.size)


@given(PLACES, PLACES, st.integers(1, 8))
def test_an_all_reduce_uses_every_edge_of_the_torus(
    rows: tuple[int, ...], columns: tuple[int, ...], per_leaf: int
) -> None:
    own = SubMesh(rows, columns)
    entering = upper = 0
    for i, j in product(range(len(rows)), range(len(columns))):
        for down, right in ((1, 0), (0, 1)):
            r, c = rows[(i + down) % len(rows)], columns[(j + right) % len(columns)]
            entering += (r, c) != (rows[i], columns[j])
            upper += (r // per_leaf, c // per_leaf) != (rows[i] // per_leaf, columns[j] // per_leaf)
    assert all_reduce_bytes(own, per_leaf) == (entering, upper)


def test_a_job_in_one_leaf_crosses_nothing() -> None:
    own = SubMesh((16, 20, 31), (0, 15))
    assert all_to_all_bytes(own, 16).upper == all_reduce_bytes(own, 16).upper == 0
    assert total([TreeBytes(3, 1), TreeBytes(1, 1)]).fraction == 0.5
    assert total([]).fraction == 0
