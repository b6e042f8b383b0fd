"""Bytes per link and distances, against figures worked out by hand and against the artifact's."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.plan import (
    AllToAll,
    Cluster,
    Demand,
    Group,
    GroupDemand,
    Link,
    Network,
    PairDemand,
    PairTable,
    Ring,
    Route,
    RouteTable,
)
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.routing.loads import (
    bandwidth_tax,
    diameter,
    link_load_bytes,
    mean_hops,
    traffic_matrix,
)


def simplex_ring(servers: int) -> Network:
    everyone = tuple(range(servers))
    links = tuple(Link(s, 0, (s + 1) % servers, 0) for s in everyone)
    routes = tuple(
        Route(tuple((s + i) % servers for i in range(hops + 1)), 1.0)
        for s in everyone
        for hops in range(2, servers)
    )
    return Network(links, (Group(everyone, (Ring(everyone, 1.0),)),), routes)


def test_a_ring_allreduce_puts_2_times_k_minus_1_over_k_of_its_bytes_on_each_link() -> None:
    demand = Demand((GroupDemand((0, 1, 2, 3), 1000),), ())
    assert link_load_bytes(simplex_ring(4), demand) == (1500,) * 4
    assert bandwidth_tax(demand, simplex_ring(4)) == 1.0


def test_relayed_bytes_count_on_every_link_of_their_route() -> None:
    demand = Demand((), (PairDemand(1, 0, 10), PairDemand(2, 3, 7)))
    assert link_load_bytes(simplex_ring(4), demand) == (0, 10, 17, 10)
    assert bandwidth_tax(demand, simplex_ring(4)) == pytest.approx(37 / 17)


def test_weights_split_a_pair_over_routes_and_parallel_links_share_evenly() -> None:
    links = (
        Link(0, 0, 1, 0),
        Link(0, 1, 1, 1),
        Link(1, 0, 3, 0),
        Link(0, 2, 2, 0),
        Link(2, 0, 3, 1),
    )
    routes = (Route((0, 1, 3), 0.75), Route((0, 2, 3), 0.25))
    network = Network(links, (), routes)
    demand = Demand((), (PairDemand(0, 3, 400), PairDemand(0, 1, 20)))
    assert link_load_bytes(network, demand) == (160, 160, 300, 100, 100)


def test_demands_of_the_same_pair_and_of_rings_add_up() -> None:
    demand = Demand(
        (GroupDemand((0, 1, 2, 3), 8), GroupDemand((3, 2, 1, 0), 4)),
        (PairDemand(0, 1, 5), PairDemand(0, 1, 6)),
    )
    assert traffic_matrix(simplex_ring(4), demand, 4).tolist() == [
        [0, 29, 0, 0],
        [0, 0, 18, 0],
        [0, 0, 0, 18],
        [18, 0, 0, 0],
    ]


@pytest.mark.parametrize("pairs", [(), ((0, 5), (3, 1), (8, 2), (0, 1))])
@pytest.mark.parametrize("sizes", [(10**6, 0), (10**3, 10**5)])
def test_routes_by_rules_load_links_as_the_same_routes_one_by_one(
    pairs: tuple[tuple[int, int], ...], sizes: tuple[int, int]
) -> None:
    # few MP bytes: a circulant network; many: matchings, and next hops for pairs without demand
    listed = tuple(PairDemand(a, b, sizes[1] + 7) for a, b in pairs)
    planned = Demand((GroupDemand(tuple(range(11)), sizes[0]),), listed)
    network = find_network(Cluster(11, 4, 1.0), planned)
    assert isinstance(network.routes, RouteTable)
    one_by_one = Network(network.links, network.groups, tuple(network.routes))
    some = AllToAll((1, 4, 5, 9), 300)
    everyone = AllToAll(tuple(range(11)), 1000)
    for table in (PairTable((), listed), PairTable((some,)), PairTable((everyone, some), listed)):
        demand = Demand(planned.groups, table)
        plain = Demand(planned.groups, tuple(table))
        assert link_load_bytes(network, demand) == link_load_bytes(one_by_one, plain)
        assert bandwidth_tax(demand, network) == pytest.approx(bandwidth_tax(plain, one_by_one))


def test_distances_of_a_directed_ring() -> None:
    assert mean_hops(simplex_ring(5), 5) == 2.5
    assert diameter(simplex_ring(5), 5) == 4
    assert (mean_hops(Network((), (), ()), 1), diameter(Network((), (), ()), 1)) == (0.0, 0)


@pytest.mark.parametrize("ratio", [0.02, 0.5, 1.0])
def test_the_tax_of_uniform_pairs_beside_allreduce_is_one_plus_r_l_over_one_plus_r(
    ratio: float,
) -> None:
    # the identity that explains the paper's Figure 13: L is the mean hops, r = MP / AllReduce bytes
    cluster = Cluster(32, 4, 100.0)
    network = find_network(cluster, Demand((GroupDemand(tuple(range(32)), 10**6),), ()))
    allreduce = 2 * 31 * 10**6
    size_bytes = round(ratio * allreduce / (32 * 31))
    pairs = tuple(PairDemand(a, b, size_bytes) for a in range(32) for b in range(32) if a != b)
    demand = Demand((GroupDemand(tuple(range(32)), 10**6),), pairs)
    r = size_bytes * 32 * 31 / allreduce
    expected = (1 + r * mean_hops(network, 32)) / (1 + r)
    assert bandwidth_tax(demand, network) == pytest.approx(expected, rel=1e-12)


def test_a_demand_of_nothing_has_no_tax() -> None:
    assert bandwidth_tax(Demand((), ()), simplex_ring(3)) == 1.0
    assert link_load_bytes(simplex_ring(3), Demand((), ())) == (0, 0, 0)


def test_a_group_without_rings_is_an_error() -> None:
    demand = Demand((GroupDemand((0, 2), 5),), ())
    with refused(ValueError, "[0, 2]"):
        link_load_bytes(simplex_ring(4), demand)
    alone = Demand((GroupDemand((2,), 5),), ())
    assert link_load_bytes(simplex_ring(4), alone) == (0,) * 4


def test_a_pair_without_a_route_is_an_error() -> None:
    network = Network((Link(0, 0, 1, 0), Link(1, 0, 0, 0)), (), ())
    with refused(ValueError, "server 0", 2):
        link_load_bytes(network, Demand((), (PairDemand(0, 2, 1),)))
    with refused(ValueError, "path"):
        mean_hops(network, 3)
