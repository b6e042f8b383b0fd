"""The links that are measured together, and the verdict on a link."""

from __future__ import annotations

import pytest
from support.fabric.netns_fixtures import make_plan

from torch_topoopt.fabric.netns.goodput import Goodput, together
from torch_topoopt.fabric.netns.shaper import goodput_share
from torch_topoopt.plan import Link


def test_links_are_measured_once_with_none_that_shares_a_port() -> None:
    links = make_plan(12, 4).network.links
    groups = together(links, 0.025)
    assert {link for group in groups for link in group} == set(links)
    assert sum(map(len, groups)) == len(links) == 48
    for group in groups:
        ends = [end for link in group for end in _ends(link)]
        assert len(set(ends)) == len(ends)
        assert len(group) <= 12, "0.3 Gb/s are 12 links"
    assert len(groups) <= 6


def test_fast_links_and_those_without_a_rate_are_measured_one_by_one() -> None:
    links = make_plan(4, 2).network.links
    assert [len(group) for group in together(links, 10.0)] == [1] * 8
    assert [len(group) for group in together(links, None)] == [1] * 8


@pytest.mark.parametrize(
    ("gbps", "expected", "error", "right"),
    [
        (0.971, 1.0, "", True),
        (0.969, 1.0, "", False),
        (1.029, 1.0, "", True),
        (1.031, 1.0, "", False),
        (5.0, None, "", True),
        (0.0, None, "no answer", False),
    ],
)
def test_three_percent_either_way_is_right(
    gbps: float, expected: float | None, error: str, right: bool
) -> None:
    assert Goodput(Link(0, 0, 1, 0), gbps, expected, error).right is right


def test_the_share_of_the_payload_is_that_of_ethernet_frames() -> None:
    assert goodput_share(1500) == pytest.approx(1448 / 1514)
    assert goodput_share(9000) == pytest.approx(0.9927, abs=1e-4)


def _ends(link: Link) -> tuple[tuple[int, int], tuple[int, int]]:
    return (link.source, link.source_port), (link.target, link.target_port)
