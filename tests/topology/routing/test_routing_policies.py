"""Routing by name: valid networks, and what each policy promises."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.plan import (
    POLICIES,
    AllToAll,
    Cluster,
    Demand,
    GroupDemand,
    PairDemand,
    PairTable,
    Policy,
    RouteTable,
    validate_network,
)
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.routing.loads import bandwidth_tax, link_load_bytes, mean_hops
from torch_topoopt.topology.routing.policies import reroute


def uniform(servers: int, size_bytes: int = 1000) -> Demand:
    return Demand((), PairTable((AllToAll(tuple(range(servers)), size_bytes),)))


def one_way_hot(servers: int) -> Demand:
    """AllReduce among all, and server 0 sends much to some: no symmetry left."""
    pairs = tuple(PairDemand(0, target, 10**5) for target in range(1, servers, 2))
    return Demand((GroupDemand(tuple(range(servers)), 10**5),), pairs)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("servers", [2, 5, 13])
@pytest.mark.parametrize("ports", ["duplex", "simplex"])
def test_routes_are_valid_for_any_demand(policy: Policy, servers: int, ports: str) -> None:
    degree = min(4, servers - 1)
    cluster = Cluster(servers, degree, 10.0, ports=ports)  # type: ignore[arg-type]
    for demand in (uniform(servers), one_way_hot(servers), Demand((), ())):
        asked = Demand((GroupDemand(tuple(range(servers)), 1),), ())
        network = find_network(cluster, asked)
        again = [reroute(network, demand, servers, policy, seed=3) for _ in range(2)]
        assert again[0] == again[1]
        validate_network(cluster, again[0])
        link_load_bytes(again[0], demand)  # every pair with bytes has a way


@pytest.mark.parametrize("demand", [uniform(16), one_way_hot(16)])
def test_optimal_routes_load_no_link_more_than_any_other_policy_does(demand: Demand) -> None:
    everyone = (GroupDemand(tuple(range(16)), 1),)
    network = find_network(Cluster(16, 4, 10.0), Demand(everyone, ()))
    most = {
        policy: max(link_load_bytes(reroute(network, demand, 16, policy), demand))
        for policy in POLICIES
    }
    assert most["optimal"] < min(most[policy] for policy in POLICIES if policy != "optimal")


def test_the_optimum_of_uniform_traffic_makes_alpha_the_mean_path_length() -> None:
    """Paper section 5.5, "Achieving optimal routing makes alpha equal to the average path length":
    links of all strides carry the same, and no byte takes a detour."""
    network = find_network(Cluster(16, 4, 10.0), Demand((GroupDemand(tuple(range(16)), 1),), ()))
    demand = uniform(16)
    best = reroute(network, demand, 16, "optimal")
    loads = link_load_bytes(best, demand)
    assert max(loads) == pytest.approx(sum(loads) / len(loads), rel=1e-6)
    assert min(loads) == pytest.approx(max(loads), rel=1e-6)
    assert bandwidth_tax(demand, best) == pytest.approx(mean_hops(best, 16))
    assert isinstance(best.routes, RouteTable)
    assert best.routes.by_offset  # compact: rules, not pairs
    assert not best.routes.listed


def test_slow_links_get_less_where_bandwidths_differ() -> None:
    """Two ways round a ring of four, one at 1 Gb/s and one at 3: a quarter goes the slow way."""
    ring = find_network(Cluster(4, 2, 1.0), Demand((GroupDemand((0, 1, 2, 3), 1),), ()))
    rates = {(link.source, link.target): 3.0 for link in ring.links}
    rates[0, 1] = 1.0
    demand = Demand((), (PairDemand(0, 2, 1000),))
    table = reroute(ring, demand, 4, "optimal", pair_gbps=rates).routes_by_pair()
    weights = {route.servers: route.weight for route in table[0, 2]}
    assert weights == pytest.approx({(0, 3, 2): 0.75, (0, 1, 2): 0.25})


def test_k_shortest_paths_are_longer_than_the_shortest_where_these_are_few() -> None:
    network = find_network(Cluster(8, 2, 10.0), Demand((GroupDemand(tuple(range(8)), 1),), ()))
    table = reroute(network, uniform(8), 8, "k-shortest", paths=2).routes_by_pair()
    assert [route.servers for route in table[1, 3]] == [(1, 2, 3), (1, 0, 7, 6, 5, 4, 3)]
    assert [route.weight for route in table[1, 3]] == [0.5, 0.5]
    assert len(table[1, 2]) == 1  # a pair with a link keeps to it


def test_random_paths_are_shortest_ones_and_hang_on_the_seed() -> None:
    network = find_network(Cluster(16, 4, 10.0), Demand((GroupDemand(tuple(range(16)), 1),), ()))
    drawn = [reroute(network, uniform(16), 16, "random", seed=seed) for seed in (1, 2)]
    assert drawn[0] != drawn[1]
    for one in drawn:
        assert bandwidth_tax(uniform(16), one) == pytest.approx(mean_hops(one, 16))


def test_bad_arguments_are_named() -> None:
    network = find_network(Cluster(8, 2, 10.0), Demand((GroupDemand(tuple(range(8)), 1),), ()))
    with refused(ValueError, "routing", "best"):
        reroute(network, uniform(8), 8, "best")  # type: ignore[arg-type]
    with refused(ValueError, "paths", 0, 1):
        reroute(network, uniform(8), 8, "shortest", paths=0)
    hot = Demand((GroupDemand((0, 3), 5),), ())
    with refused(ValueError, "[0, 3]"):
        reroute(network, hot, 8, "optimal")
