"""Double binary trees of Figures 22 and 23, and the costs of Figure 10 at 4394 servers."""

from __future__ import annotations

import numpy as np
import pytest

from figures.cells import prices, traffic

PERMUTATIONS = [(2, 1), (6, 1), (3, 8)]  # of Figure 23


def reached_from_root(parents: list[int | None]) -> int:
    """How many servers have a path to the root."""
    count = 0
    for server in range(len(parents)):
        at: int | None = server
        for _ in parents:
            if at is None:
                break
            at = parents[at]
        count += at is None
    return count


@pytest.mark.parametrize("permutation", PERMUTATIONS)
def test_both_trees_join_all_servers_and_swap_leaves(permutation: tuple[int, int]) -> None:
    trees = traffic.double_tree(*permutation)
    inner = [set(parents) - {None} for parents in trees]
    for parents in trees:
        assert parents.count(None) == 1
        assert reached_from_root(parents) == traffic.SERVERS
        assert max(parents.count(server) for server in range(traffic.SERVERS)) == 2
    assert not inner[0] & inner[1]
    assert len(inner[0] | inner[1]) == traffic.SERVERS


@pytest.mark.parametrize(
    ("permutation", "tree", "children"),
    [
        ((2, 1), 0, {0: {8}, 8: {4, 12}, 4: {2, 6}, 2: {1, 3}, 14: {13, 15}}),
        ((2, 1), 1, {1: {9}, 9: {5, 13}, 5: {3, 7}, 3: {0, 2}, 15: {12, 14}}),
        ((6, 1), 0, {0: {8}, 8: {12, 4}, 12: {6, 2}, 6: {1, 7}, 2: {13, 3}, 10: {5, 11}}),
        ((6, 1), 1, {1: {9}, 9: {13, 5}, 13: {7, 3}, 7: {0, 6}, 3: {12, 2}, 11: {4, 10}}),
        ((3, 8), 0, {0: {12}, 12: {6, 2}, 6: {3, 9}, 3: {8, 11}, 9: {14, 1}, 5: {10, 13}}),
        ((3, 8), 1, {8: {4}, 4: {14, 10}, 14: {11, 1}, 11: {0, 3}, 1: {6, 9}, 13: {2, 5}}),
    ],
)
def test_the_trees_are_those_of_figure_23(
    permutation: tuple[int, int], tree: int, children: dict[int, set[int]]
) -> None:
    parents = traffic.double_tree(*permutation)[tree]
    for server, expected in children.items():
        assert {own for own, above in enumerate(parents) if above == server} == expected


@pytest.mark.parametrize("permutation", PERMUTATIONS)
def test_a_permutation_moves_transfers_and_leaves_their_sizes(permutation: tuple[int, int]) -> None:
    first, moved = (
        traffic.on_trees(step=step, offset=offset)
        for step, offset in (PERMUTATIONS[0], permutation)
    )
    assert sorted(np.ravel(moved["all_reduce"])) == sorted(np.ravel(first["all_reduce"]))
    assert (moved["all_reduce"] == first["all_reduce"]) == (permutation == PERMUTATIONS[0])
    assert moved["mp"] == first["mp"]
    sent = 2 * (traffic.SERVERS - 1) * traffic.DENSE_BYTES
    assert np.sum(moved["all_reduce"]) == sent, "as much as a ring sends"


def test_half_the_price_of_patch_panels_makes_topoopt_cheaper_by_those_ports_alone() -> None:
    found = prices.at_4394(degree=4, gbps=100.0)
    own, tree = found["TopoOpt"], found["Ideal Switch"]
    assert tree["dollars_full"] == tree["dollars_half"]
    ports = 2 * 4 * 4394  # two panel ports for each port of a server
    assert own["dollars_full"] - own["dollars_half"] == pytest.approx(ports * 50)
    assert own["switch_ports"] == 0, "optical switches are passive"
    assert tree["switch_ports"] > 4
    assert tree["transceivers"] > own["transceivers"]
