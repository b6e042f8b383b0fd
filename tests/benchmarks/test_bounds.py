"""The arithmetic behind the tables: what operations move, and how fast links allow them to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from harness.direct_fabric import make_plan, sampled_links
from torch_topoopt.report.bounds import (
    bus_factor,
    busiest_link_pairs,
    fewest_links,
    hop_count,
    least_seconds,
)
from torch_topoopt.tools.bench.options import parse_size
from torch_topoopt.tools.bench.timing import sizes, target_at

if TYPE_CHECKING:
    from torch_topoopt.plan import Plan

B = 3e6


@pytest.fixture(scope="module")
def twelve() -> Plan:
    return make_plan(12, 4, 0.025)


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("sendrecv", 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(operation: str, factor: float) -> None:
    assert bus_factor(operation, 4) == factor


def test_all_reduce_on_twelve_servers_of_four_links_has_the_bound_of_the_readme(
    twelve: Plan,
) -> None:
    strides = {(link.target - link.source) % 12 for link in twelve.network.links}
    assert strides == {1, 5, 7, 11}
    assert fewest_links(twelve) == 4
    assert least_seconds(twelve, "all_reduce", 16 << 20, B) == pytest.approx(
        2 * 11 / 12 * (16 << 20) / (4 * B)
    )
    assert least_seconds(twelve, "all_gather", 16 << 20, B) == pytest.approx(
        11 / 12 * (16 << 20) / (4 * B)
    )
    assert least_seconds(twelve, "sendrecv", 16 << 20, B) == pytest.approx((16 << 20) / B)


def test_nothing_is_said_about_operations_that_move_nothing(twelve: Plan) -> None:
    assert least_seconds(twelve, "barrier", 0, B) is None


def test_all_to_all_on_a_ring_of_four_is_bound_by_its_two_hop_pairs() -> None:
    ring = make_plan(4, 2, 1.0)
    # Each link carries its own pair and the halves, or wholes, of the pairs two hops apart: 4
    # servers have 4 such pairs of two hops over 8 links, 1 on average if they are spread evenly.
    assert 2.0 <= busiest_link_pairs(ring) <= 3.0
    assert least_seconds(ring, "all_to_all", 4000, 1000.0) == pytest.approx(
        busiest_link_pairs(ring)
    )


def test_forwarded_paths_are_shortest(twelve: Plan) -> None:
    # +1, -1, +5, -5 reach 0, 1, 5, 7, 11 in a hop, 2, 4, 6, 8, 10 in two, and the rest in three.
    hops = [hop_count(twelve, 0, target) for target in range(1, 12)]
    assert hops == [1, 2, 3, 2, 1, 2, 1, 2, 3, 2, 1]


def test_sampled_links_cover_every_stride_once_before_any_twice(twelve: Plan) -> None:
    sampled = sampled_links(twelve, 4)
    assert {(link.target - link.source) % 12 for link in sampled} == {1, 5, 7, 11}


def test_targets_are_chosen_by_hops(twelve: Plan) -> None:
    assert target_at(twelve, 12, 0, None) == (3, 3)
    assert target_at(twelve, 12, 0, 1)[1] == 1
    assert target_at(None, 4, 3, None) == (0, 1)
    with refused(ValueError, "hops", 9, "server 0"):
        target_at(twelve, 12, 0, 9)


def test_sizes_step_as_in_nccl_tests() -> None:
    assert parse_size("64K") == 65536
    assert list(sizes(8, 128, 4, 0)) == [8, 32, 128]
    assert list(sizes(8, 24, 4, 8)) == [8, 16, 24]
