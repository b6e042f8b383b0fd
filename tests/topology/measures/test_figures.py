"""The figures by which networks are compared, against ones worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from torch_topoopt.plan import Cluster, Demand, GroupDemand, PairTable, validate_demand
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.single_ring import single_ring
from torch_topoopt.topology.measures.figures import (
    default_demand,
    figures_of,
    moore_bound_hops,
    strides_of,
)


def test_the_figures_of_a_ring_of_eight() -> None:
    cluster = Cluster(8, 2, 10.0)
    demand = Demand((GroupDemand(tuple(range(8)), 800),), ())
    network = find_network(cluster, demand)
    figures = figures_of(cluster, network, demand)
    # distances 1 1 2 2 3 3 4 from every server, which is the least for two ports
    assert figures.mean_hops == figures.moore_bound_hops == pytest.approx(16 / 7)
    assert figures.diameter == 4
    # 2 * 7/8 * 800 bytes leave every server, half of them each way
    assert figures.max_link_load == figures.mean_link_load == 700
    assert figures.bandwidth_tax == 1
    assert figures.all_reduce_over_bound == pytest.approx(1)
    # no pair has demand, so each has one route, and the opposite servers are not spread over two
    assert figures.all_to_all_over_bound == pytest.approx(10 / 8)
    both = find_network(cluster, default_demand(8))
    assert figures_of(cluster, both, default_demand(8)).all_to_all_over_bound == pytest.approx(1)


def test_one_direction_of_one_ring_takes_twice_the_least_time_for_allreduce() -> None:
    cluster = Cluster(8, 2, 10.0)
    figures = figures_of(cluster, single_ring(cluster, default_demand(8)), default_demand(8))
    assert figures.all_reduce_over_bound == pytest.approx(2)


@pytest.mark.parametrize(
    ("degree", "duplex", "bound"), [(4, False, 3.150), (4, True, 3.433), (8, True, 2.433)]
)
def test_the_moore_bounds_of_128_servers(degree: int, duplex: bool, bound: float) -> None:
    assert moore_bound_hops(128, degree, duplex=duplex) == pytest.approx(bound, abs=0.001)


def test_the_moore_bound_of_small_networks() -> None:
    assert moore_bound_hops(10, 3, duplex=True) == 15 / 9  # the Petersen graph reaches it
    assert moore_bound_hops(5, 4, duplex=True) == 1
    assert moore_bound_hops(1, 1, duplex=True) == 0
    assert moore_bound_hops(2, 1, duplex=True) == 1
    assert moore_bound_hops(3, 1, duplex=True) == float("inf")


def test_the_default_demand_is_valid_and_leaves_the_degree_to_allreduce() -> None:
    for servers in (2, 3, 12, 100):
        cluster = Cluster(servers, 1, 1.0, "simplex")
        demand = validate_demand(cluster, default_demand(servers))
        assert isinstance(demand.pairs, PairTable)
    network = find_network(Cluster(100, 8, 1.0), default_demand(100))
    assert len(network.groups[0].rings) == 8


def test_strides_are_listed_once_per_port_and_on_duplex_once_per_cable() -> None:
    simplex = Cluster(12, 4, 1.0, "simplex")
    assert strides_of(simplex, find_network(simplex, Demand((), ()))) == (1, 5, 7, 11)
    duplex = Cluster(12, 6, 1.0)
    network = find_network(duplex, default_demand(12), mode="released")
    assert strides_of(duplex, network) == (1, 5, 5)
    links = network.links[2:]
    assert strides_of(duplex, dataclasses.replace(network, links=links)) is None
