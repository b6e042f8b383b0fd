"""TotientPerms against Theorem 2 of the paper (appendix E.1)."""

from __future__ import annotations

import math

import pytest
from support.refusals import refused

from torch_topoopt.topology.finder.totient_perms import ring_order, totient_perms


def test_twelve_servers_have_strides_1_5_7_11_as_in_section_4_3() -> None:
    assert totient_perms(12, duplex=False) == (1, 5, 7, 11)


def test_on_duplex_a_stride_and_its_complement_are_the_same_cables() -> None:
    assert totient_perms(12, duplex=True) == (1, 5)


@pytest.mark.parametrize(
    ("size", "simplex", "duplex"),
    [(1, (), ()), (2, (1,), (1,)), (3, (1, 2), (1,)), (4, (1, 3), (1,)), (6, (1, 5), (1,))],
)
def test_small_groups(size: int, simplex: tuple[int, ...], duplex: tuple[int, ...]) -> None:
    assert totient_perms(size, duplex=False) == simplex
    assert totient_perms(size, duplex=True) == duplex


def test_theorem_2_each_candidate_is_one_ring_and_no_other_stride_is() -> None:
    for size in range(2, 201):
        candidates = totient_perms(size, duplex=False)
        for stride in range(1, size):
            walk = {step * stride % size for step in range(size)}
            assert (len(walk) == size) == (stride in candidates), (size, stride)


def test_theorem_2_each_candidate_is_a_different_ring() -> None:
    for size in range(2, 201):
        orders = {ring_order(range(size), p) for p in totient_perms(size, duplex=False)}
        assert len(orders) == len(totient_perms(size, duplex=False))


def test_duplex_candidates_and_their_complements_are_all_simplex_candidates() -> None:
    for size in range(2, 201):
        half = totient_perms(size, duplex=True)
        assert {q for p in half for q in (p, size - p)} == set(totient_perms(size, duplex=False))
        assert len(half) == max(1, len(totient_perms(size, duplex=False)) // 2)


def test_ring_order_walks_over_the_members_not_over_server_numbers() -> None:
    assert ring_order((2, 5, 7, 11, 12), 2) == (2, 7, 12, 5, 11)


def test_a_stride_with_a_common_factor_is_refused() -> None:
    assert math.gcd(4, 6) == 2
    with refused(ValueError, "stride", 4, 2, 6):
        ring_order(range(6), 4)


def test_an_empty_group_is_refused() -> None:
    with refused(ValueError, "size", 0, 1):
        totient_perms(0, duplex=True)
