"""Network files of regular networks are those that the schemes are tested with."""

from __future__ import annotations

from itertools import product

import pytest
from support.refusals import refused

from torch_topoopt.route_control.clos_network import leaf_spine
from torch_topoopt.route_control.network_shapes import fat_tree_file, leaf_spine_file


@pytest.mark.parametrize(("leaves", "spines"), [(1, 1), (4, 2), (3, 5)])
def test_a_leaf_spine_file_is_the_leaf_spine_network(leaves: int, spines: int) -> None:
    file = leaf_spine_file(leaves, spines, 3, 1e8)
    assert [cable.ends for cable in file.links] == [
        (f"leaf{leaf}", f"spine{spine}") for leaf in range(leaves) for spine in range(spines)
    ]
    assert file.network().capacity == leaf_spine(leaves, spines, capacity=1e8).capacity
    assert file.numbered[: file.network().tors] == tuple(f"leaf{i}" for i in range(leaves))
    assert [host.switch for host in file.hosts[::3]] == [f"leaf{i}" for i in range(leaves)]


@pytest.mark.parametrize("radix", [2, 4, 6])
def test_a_fat_tree_file_is_the_fat_tree(radix: int) -> None:
    file = fat_tree_file(radix, 1e8)
    half, joined = radix // 2, set()
    for pod, i, j in product(range(radix), range(half), range(half)):
        aggregation = f"aggregation{pod * half + i}"
        joined |= {(f"tor{pod * half + j}", aggregation), (aggregation, f"core{i * half + j}")}
    assert {cable.ends for cable in file.links} == joined
    assert set(file.network().capacity.values()) == {1e8}
    assert file.numbered == tuple(switch.name for switch in file.switches)
    assert len(file.hosts) == radix**3 // 4


def test_shapes_that_cannot_be_are_refused_by_name() -> None:
    for call, tokens in (
        (lambda: leaf_spine_file(2, 0, 1, 1e8), ("spines", 0)),
        (lambda: fat_tree_file(3, 1e8), ("radix", 3)),
        (lambda: fat_tree_file(0, 1e8), ("radix", 0)),
        (lambda: fat_tree_file(4, 1e8, 3), ("hosts_per_tor", 3)),
    ):
        with refused(ValueError, *tokens):
            call()
