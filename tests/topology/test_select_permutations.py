"""SelectPermutations: the strides that the paper's rule gives (Algorithm 3)."""

from __future__ import annotations

import pytest

from torch_topoopt.topology.select_permutations import select_permutations
from torch_topoopt.topology.totient_perms import totient_perms


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


def test_few_candidates_are_all_used() -> None:
    assert select_permutations(6, 2, totient_perms(6, duplex=True)) == (1,)


def test_further_strides_continue_from_the_ones_that_have_links() -> None:
    assert select_permutations(128, 1, totient_perms(128, duplex=True), chosen=(1,)) == (11,)
    assert select_permutations(4, 1, (1,), chosen=(1,)) == ()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="count: -1 is negative"):
        select_permutations(8, -1, (1, 3))
    with pytest.raises(ValueError, match="size: 0 is not at least 1"):
        select_permutations(0, 1, ())
