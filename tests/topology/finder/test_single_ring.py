"""The single ring that plans are compared with."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.plan import Cluster, Demand, GroupDemand, PairDemand
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.single_ring import single_ring
from torch_topoopt.topology.routing.loads import link_load_bytes


def test_all_bytes_take_one_direction_of_one_ring() -> None:
    demand = Demand((GroupDemand((0, 1, 2, 3), 1000),), ())
    network = single_ring(Cluster(4, 2, 1.0), demand)
    loads = dict(zip(network.links, link_load_bytes(network, demand), strict=True))
    assert {link: load for link, load in loads.items() if load} == {
        link: 1500 for link in network.links if link.target == (link.source + 1) % 4
    }
    assert len(loads) == 8


def test_groups_and_pairs_off_the_ring_are_relayed() -> None:
    demand = Demand((GroupDemand((0, 2), 10),), (PairDemand(3, 1, 5),))
    network = single_ring(Cluster(4, 1, 1.0, "simplex"), demand)
    # the pair 0, 2 sends 10 bytes each way round, and 3 -> 0 -> 1 carries 5 more
    assert link_load_bytes(network, demand) == (15, 10, 10, 15)


@pytest.mark.parametrize("servers", [1, 2, 3, 9])
@pytest.mark.parametrize("ports", ["duplex", "simplex"])
def test_every_size_is_valid_and_never_better_than_the_plan(servers: int, ports: str) -> None:
    degree = 2 if servers > 2 else 1
    cluster = Cluster(servers, degree, 1.0, ports)  # type: ignore[arg-type]
    demand = Demand((GroupDemand(tuple(range(servers)), 10**6),), ())
    ring = single_ring(cluster, demand)
    planned = find_network(cluster, demand)
    busiest = max(link_load_bytes(ring, demand), default=0)
    assert busiest >= max(link_load_bytes(planned, demand), default=0)
    if servers > 2:
        assert busiest == pytest.approx(2 * max(link_load_bytes(planned, demand)), abs=1)


def test_bad_input_is_named() -> None:
    with refused(DocumentError, "server 9", "0..3"):
        single_ring(Cluster(4, 2, 1.0), Demand((), (PairDemand(0, 9, 1),)))
