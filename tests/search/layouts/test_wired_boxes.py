"""Rates of groups on cabled boxes, against those known exactly."""

from __future__ import annotations

import pytest

from torch_topoopt.plan import Cluster, Demand, GroupDemand, Network, PairDemand
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.layouts.links import PORT_EFFICIENCY, RankGroup
from torch_topoopt.search.layouts.wired_boxes import NetworkRates, boxes_of
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.single_ring import single_ring

PORT = 25e9  # bytes per second of 200 Gb/s
EVERYONE = Demand((GroupDemand((0, 1, 2, 3), 10**9),), ())
OPPOSITE = Demand((), tuple(PairDemand(a, (a + 2) % 4, 10**9) for a in range(4)))


def ring(demand: Demand = EVERYONE, per_server: int = 1) -> tuple[Cluster, Network]:
    cluster = Cluster(4, 2, 200.0, accelerators_per_server=per_server, accelerator="h100:bf16")
    return cluster, find_network(cluster, demand)


def test_a_ring_gathers_among_all_at_the_rate_of_all_ports() -> None:
    rates = NetworkRates(*ring())
    assert rates.gather(RankGroup(4, 1)) == pytest.approx(2 * PORT)


@pytest.mark.parametrize("per_server", [2, 8])
def test_groups_that_share_servers_share_the_rate(per_server: int) -> None:
    """Seconds of a gather are those of all bytes into a box, whoever gathers them."""
    cluster, network = ring(per_server=per_server)
    boxes = boxes_of(cluster, accelerator("h100:bf16"), network)
    size = 10**12
    into_box = per_server * size * 3 / 4
    group = RankGroup(4, per_server)
    exact_s = into_box / (2 * PORT * PORT_EFFICIENCY)
    assert boxes.gather_s(size, group) == pytest.approx(exact_s, rel=1e-4)
    assert boxes.gather_s(size, RankGroup(4 * per_server, 1)) < exact_s


def test_neighbours_have_one_cable_and_opposite_servers_relays() -> None:
    rates = NetworkRates(*ring(OPPOSITE))
    assert rates.gather(RankGroup(2, 1)) == pytest.approx(PORT)
    # each of four transfers takes two hops: eight loads on eight links
    assert rates.gather(RankGroup(2, 2)) == pytest.approx(PORT)
    assert rates.send(1) == pytest.approx(PORT)
    assert rates.send(2) == pytest.approx(PORT)


def test_a_single_ring_gathers_in_one_direction() -> None:
    cluster, _ = ring()
    network = single_ring(cluster, EVERYONE)
    everyone = RankGroup(4, 1)
    rings = NetworkRates(cluster, network, schedules=False)
    assert rings.gather(everyone) == pytest.approx(PORT)
    # schedules also use the other direction of the cables
    assert NetworkRates(cluster, network).gather(everyone) > 1.9 * PORT


def test_no_network_is_faster_than_the_ports() -> None:
    cluster = Cluster(8, 3, 100.0)
    network = find_network(cluster, Demand((GroupDemand(tuple(range(8)), 10**9),), ()))
    rates = NetworkRates(cluster, network)
    ports = 3 * 12.5e9
    for group in (
        RankGroup(8, 1),
        RankGroup(4, 1),
        RankGroup(2, 1),
        RankGroup(4, 2),
        RankGroup(2, 4),
    ):
        assert 0 < rates.gather(group) <= ports * (1 + 1e-9)
        assert 0 < rates.all_to_all(group) <= ports * (1 + 1e-9)


def test_boxes_are_those_of_the_cluster() -> None:
    cluster = Cluster(
        2, 1, 100.0, accelerators_per_server=4, inside_gbps=800.0, inside_latency_s=1e-5
    )
    boxes = boxes_of(cluster, accelerator("h100:bf16"))
    assert boxes.accelerators == 4
    assert boxes.peer_bytes_per_s == 100e9
    assert boxes.box_bytes_per_s == 12.5e9
    assert boxes.step_s == 1e-5
    assert boxes_of(Cluster(2, 1, 100.0), accelerator("h100")).peer_bytes_per_s == 450e9
