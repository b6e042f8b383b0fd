"""What limits a cable: over made-up facts of its ends and rates of floods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import cluster_of
from support.refusals import named
from support.sites import changed, changed_interface, healthy

from torch_topoopt.fabric.netns.shaper import goodput_share
from torch_topoopt.tools.bench.link.limits import FlowRate, LinkVerdict, verdict
from torch_topoopt.tools.doctor.facts import CardFacts, RdmaFacts

if TYPE_CHECKING:
    from support.plans import RingPlan

    from torch_topoopt.tools.doctor.findings import Site

CABLE = ("h0:p0", "h1:p0")
X16_GBPS = 504.1
MTU = 9000


@pytest.fixture
def site(ring_plan: RingPlan) -> Site:
    """Cables of 200 Gb/s between cards with 16 lanes."""
    found = healthy(cluster_of(ring_plan(3), gbps=200, mtu=MTU))
    for server in found.facts:
        found = changed_interface(found, server, "p0", gbps=200.0, mtu=MTU, tso=True, gro=True)
        found = with_card(found, server, X16_GBPS, "32.0 GT/s x16")
    return found


def with_card(site: Site, server: str, gbps: float, text: str) -> Site:
    card = CardFacts(
        *("p0", None, "0000:01:00", text, gbps, X16_GBPS, None, True, None), driver="mlx5_core"
    )
    return changed(site, server, rdma=RdmaFacts((), (card,), (), None))


def judged(site: Site, *gbps: float, resent: float = 0.0, core: float = 0.1) -> LinkVerdict:
    """The verdict about rates with 1, 2 and 4 connections."""
    rates = [
        FlowRate(count, rate, rate, resent, core)
        for count, rate in zip((1, 2, 4), gbps, strict=True)
    ]
    return verdict(site, CABLE, rates)


def test_the_port_is_the_limit_where_its_rate_is_reached(site: Site) -> None:
    found = judged(site, 190.0, 192.0, 192.0)
    assert found.should_gbps == pytest.approx(200 * goodput_share(MTU))
    assert named(found.limit, "port", "p0")
    assert found.advice == ""


def test_a_function_with_a_quarter_of_its_lanes_is_named(site: Site) -> None:
    narrow = with_card(site, "h1", X16_GBPS / 4, "32.0 GT/s x4")
    found = judged(narrow, 115.0, 115.0, 115.0)
    assert found.should_gbps == pytest.approx(X16_GBPS / 4 * goodput_share(MTU))
    assert named(found.limit, "PCIe", "h1", "p0", "x4")
    assert named(found.advice, "h1", "25%")


def test_a_function_that_is_slower_than_its_port_is_named(site: Site) -> None:
    slow = with_card(site, "h0", 100.0, "32.0 GT/s x4")
    found = judged(slow, 1.0, 1.0, 1.0)
    assert named(found.advice, "PCIe", "h0", "x4")


@pytest.mark.parametrize(
    ("facts", "resent", "core", "limit"),
    [
        ({}, 0.05, 1.0, "losses"),
        ({}, 0.0, 1.0, "core"),
        ({"tso": False}, 0.0, 0.3, "TSO"),
        ({}, 0.0, 0.3, "mlx5_core"),
    ],
)
def test_below_all_limits_the_cause_is_looked_for(
    facts: dict[str, object], resent: float, core: float, limit: str, site: Site
) -> None:
    found = judged(
        changed_interface(site, "h0", "p0", **facts), 13.0, 13.0, 13.0, resent=resent, core=core
    )
    assert named(found.limit, limit)


def test_frames_that_cards_dropped_are_named_before_losses(site: Site) -> None:
    found = verdict(site, CABLE, [FlowRate(1, 13.0, 13.0, 0.05, 0.3)], damaged_frames=7)
    assert named(found.limit, 7)


def test_more_connections_and_larger_frames_spare_a_core(site: Site) -> None:
    for server in site.facts:
        site = changed_interface(site, server, "p0", mtu=1500)
    found = judged(site, 52.0, 105.0, 105.0, core=1.0)
    assert named(found.limit, "core")
    assert named(found.advice, "MTU", 1500, "--connections 2")
