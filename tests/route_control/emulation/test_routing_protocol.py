"""Following next hops leads over the shortest live paths, over all of them and over no other."""

from __future__ import annotations

import random

import pytest

from torch_topoopt.route_control.emulation.next_hops import next_hops
from torch_topoopt.route_control.network_shapes import fat_tree_file, leaf_spine_file


@pytest.mark.parametrize("seed", range(12))
def test_walks_along_next_hops_are_the_shortest_paths(seed: int) -> None:
    draw = random.Random(seed)
    file = fat_tree_file(4, 1e8) if seed % 2 else leaf_spine_file(4, 3, 1, 1e8)
    dead = frozenset(draw.sample(sorted(file.cables, key=sorted), draw.randint(0, 8)))
    table, network = next_hops(file, dead), file.network(dead)

    def walks(path: tuple[str, ...], tor: str) -> list[tuple[str, ...]]:
        if path[-1] == tor:
            return [path]
        found = [walks((*path, near), tor) for near in table[path[-1]].get(tor, ())]
        return [walk for of_one in found for walk in of_one]

    tors = file.numbered[: network.tors]
    for a, source in enumerate(tors):
        for b, target in enumerate(tors):
            if a != b:
                names = [tuple(file.numbered[i] for i in path) for path in network.paths(a, b)]
                assert sorted(walks((source,), target)) == sorted(names)
