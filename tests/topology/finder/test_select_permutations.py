"""SelectPermutations: the strides that the paper's rule gives (Algorithm 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.topology.finder.select_permutations import select_permutations
from torch_topoopt.topology.finder.totient_perms import totient_perms

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.mark.parametrize(
    ("size", "degree", "duplex", "strides"),
    [
        (128, 4, False, (1, 3, 11, 37)),
        (128, 8, False, (1, 3, 5, 9, 17, 31, 57, 105)),
        (128, 4, True, (1, 11)),
        (128, 8, True, (1, 3, 11, 37)),
        (12, 4, False, (1, 5, 11, 7)),
        (12, 4, True, (1, 5)),
        (16, 4, True, (1, 3)),
        (5, 4, True, (1, 2)),
        (2, 1, True, (1,)),
    ],
)
def test_strides_of_a_whole_cluster(
    size: int, degree: int, duplex: bool, strides: tuple[int, ...]
) -> None:
    count = degree // 2 if duplex and size > 2 else degree
    assert select_permutations(size, count, totient_perms(size, duplex=duplex)) == strides


def test_ties_go_to_the_smaller_stride() -> None:
    # 16 servers, two strides: 4 x 1 = 4 lies between 3 and 5
    assert select_permutations(16, 2, (1, 3, 5, 7)) == (1, 3)


def test_each_stride_is_the_nearest_unused_candidate_to_the_ratio_times_the_last() -> None:
    for size in range(3, 120):
        for count in (1, 2, 3, 5):
            candidates = totient_perms(size, duplex=False)
            chosen = select_permutations(size, count, candidates)
            assert len(chosen) == len(set(chosen)) == min(count, len(candidates))
            ratio = size ** (1 / len(chosen))
            for i in range(1, len(chosen)):
                unused = set(candidates) - set(chosen[:i])
                target = ratio * chosen[i - 1]
                assert abs(chosen[i] - target) == min(abs(r - target) for r in unused)


def diameter(size: int, strides: Iterable[int]) -> int:
    """Of the circulant network of these strides: sets of offsets as bits of one number."""
    everyone, reached, hops = (1 << size) - 1, 1, 0
    while reached != everyone:
        before = reached
        for p in strides:
            reached |= ((before << p) | (before >> (size - p))) & everyone
        hops += 1
    return hops


def test_theorem_1_bounds_the_diameter_of_every_network_up_to_2048_servers() -> None:
    # section 4.3, Theorem 1 and appendix E.2: d n^(1/d). It holds for all n and d, also where its
    # proof's assumptions fail: n^(1/d) is no integer, or below 2, or n has fewer coprime strides.
    for size in range(2, 2049):
        candidates = totient_perms(size, duplex=False)
        known: dict[tuple[int, ...], int] = {}
        for degree in range(2, 9):
            strides = select_permutations(size, degree, candidates)
            if strides not in known:
                known[strides] = diameter(size, strides)
            assert known[strides] <= degree * size ** (1 / degree), (size, degree)


def test_on_duplex_ports_theorem_1_holds_for_half_the_degree() -> None:
    # a duplex stride takes two ports, so d ports fit a geometric sequence of d / 2 terms
    beyond = {}
    for size in range(3, 400):
        candidates = totient_perms(size, duplex=True)
        for degree in (2, 4, 6, 8):
            strides = select_permutations(size, degree // 2, candidates)
            both = {q for p in strides for q in (p, size - p)}
            hops = diameter(size, both)
            assert hops <= degree / 2 * size ** (2 / degree), (size, degree)
            if hops > degree * size ** (1 / degree):
                beyond.setdefault(degree, size)
    assert beyond == {2: 18, 4: 290}, "as printed it fails from here on"


def test_few_candidates_are_all_used() -> None:
    assert select_permutations(6, 2, totient_perms(6, duplex=True)) == (1,)


def test_further_strides_continue_from_the_ones_that_have_links() -> None:
    assert select_permutations(128, 1, totient_perms(128, duplex=True), chosen=(1,)) == (11,)
    assert select_permutations(4, 1, (1,), chosen=(1,)) == ()


def test_bad_arguments_are_named() -> None:
    with refused(ValueError, "count", -1):
        select_permutations(8, -1, (1, 3))
    with refused(ValueError, "size", 0, 1):
        select_permutations(0, 1, ())
