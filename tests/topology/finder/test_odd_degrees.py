"""Odd numbers of duplex ports: a ring takes two, a matching the odd one, and AllReduce uses all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.plan import Cluster, Demand, GroupDemand, PairDemand, validate_network
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.crossed_rings import (
    complete_rings,
    crossed_orders,
    crossing_matching,
)
from torch_topoopt.topology.finder.fixed_network import Cable, network_of_cables
from torch_topoopt.topology.measures.figures import figures_of
from torch_topoopt.topology.routing.loads import link_load_bytes

if TYPE_CHECKING:
    from torch_topoopt.topology.find_network import Mode

BUDGET_S = 0.01  # of mode best


def all_reduce(servers: int) -> Demand:
    """Of a size that every ring share divides."""
    return Demand((GroupDemand(tuple(range(servers)), 840 * servers),), ())


def odd_clusters() -> list[tuple[int, int]]:
    return [(n, d) for d in (3, 5) for n in range(d + 1, 13)]


@pytest.mark.parametrize("mode", ["paper", "best"])
@pytest.mark.parametrize(("servers", "degree"), odd_clusters())
def test_every_port_but_an_odd_one_of_all_is_used(servers: int, degree: int, mode: Mode) -> None:
    cluster, demand = Cluster(servers, degree, 10.0), all_reduce(servers)
    budget_s = BUDGET_S if mode == "best" else None
    network = find_network(cluster, demand, mode=mode, search=NetworkSearch(budget_s=budget_s))
    validate_network(cluster, network)
    assert cluster.dark_ports(network.links) == servers * degree % 2
    assert len(network.links) == servers * degree - servers * degree % 2
    over_bound = figures_of(cluster, network, demand).all_reduce_over_bound
    if mode == "paper" and (servers, degree) == (6, 5):
        # 6 servers have one stride that is a ring, so three of the five ports can carry rings
        assert over_bound == pytest.approx(5 / 3)
        return
    assert over_bound == pytest.approx(1)
    if servers % 2 == 0:  # 2 (n - 1) / n of the bytes over d links, all alike
        least = 2 * (servers - 1) * 840 // degree
        assert set(link_load_bytes(network, demand)) == {least}


@pytest.mark.parametrize("mode", ["paper", "best"])
def test_four_servers_with_three_ports_are_a_full_mesh_of_three_rings(mode: Mode) -> None:
    network = find_network(Cluster(4, 3, 10.0), all_reduce(4), mode=mode)
    assert {(link.source, link.target) for link in network.links} == {
        (a, b) for a in range(4) for b in range(4) if a != b
    }
    (group,) = network.groups
    assert sorted(ring.servers for ring in group.rings) == [
        (0, *rest) for rest in ((1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1))
    ]
    assert {ring.share for ring in group.rings} == {1 / 6}


def test_released_says_that_the_artifact_has_no_odd_degree() -> None:
    with refused(ValueError, "degree", 3, "released", "use"):
        find_network(Cluster(4, 3, 10.0), all_reduce(4), mode="released")
    simplex = find_network(Cluster(8, 3, 10.0, "simplex"), all_reduce(8), mode="released")
    assert len(simplex.links) == 24


def test_the_odd_port_serves_a_hot_pair_where_there_is_model_parallel_demand() -> None:
    pairs = tuple(PairDemand(s, (s + 4) % 8, 10**6) for s in range(8))
    demand = replace(all_reduce(8), pairs=pairs)
    network = find_network(Cluster(8, 3, 10.0), demand)
    joined = {(link.source, link.target) for link in network.links}
    assert all((pair.source, pair.target) in joined for pair in pairs)
    assert len(network.groups[0].rings) == 2  # opposite servers cross no ring of 8


@pytest.mark.parametrize("servers", [4, 6, 8, 10, 12, 14, 32, 130])
def test_a_crossing_matching_makes_three_rings_with_two_on_every_cable(servers: int) -> None:
    order = tuple(range(0, servers, 2)) + tuple(range(servers - 1, 0, -2))
    taken = {(0, servers // 2)} if servers > 4 else set()
    matching = crossing_matching(order, taken)
    assert taken.isdisjoint(matching)
    rings = [order, *crossed_orders(order, matching)]
    assert [sorted(ring) for ring in rings] == [list(range(servers))] * 3
    cables = [frozenset(hop) for ring in rings for hop in pairwise((*ring, ring[0]))]
    assert {cables.count(cable) for cable in cables} == {2}
    assert len(set(cables)) == 3 * servers // 2


def test_opposite_servers_cross_a_ring_where_their_number_is_2_modulo_4() -> None:
    for servers in (6, 10, 14, 30):
        opposite = tuple((s, s + servers // 2) for s in range(servers // 2))
        assert crossing_matching(range(servers), ()) == opposite
    for servers in (8, 12, 16):
        assert (
            crossed_orders(
                tuple(range(servers)), [(s, s + servers // 2) for s in range(servers // 2)]
            )
            == ()
        )
    assert crossing_matching(range(7), ()) == ()


@pytest.mark.parametrize("servers", [4, 6, 8, 10, 16, 22])
def test_a_complete_graph_is_rings_and_a_matching_that_crosses_the_last(servers: int) -> None:
    rings, matching = complete_rings(servers)
    cables = [hop for ring in rings for hop in pairwise((*ring, ring[0]))] + list(matching)
    assert (
        len({frozenset(cable) for cable in cables}) == len(cables) == servers * (servers - 1) // 2
    )
    assert len(crossed_orders(rings[-1], matching)) == 2


def test_cables_that_are_there_are_all_used_where_they_are_a_full_mesh() -> None:
    from torch_topoopt.plan import Link

    pairs = [(a, b) for a in range(4) for b in range(a)]
    ports = [0] * 4
    links: list[Link] = []
    for a, b in pairs:
        link = Link(a, ports[a], b, ports[b])
        links += [link, link.reverse]
        ports[a] += 1
        ports[b] += 1

    def mesh(slow: float) -> int:
        cables = [
            Cable((b, a), (f"e{b}", f"e{a}"), slow if (b, a) == (0, 2) else 10.0) for a, b in pairs
        ]
        cables = [replace(c, interfaces=(f"{c.servers[1]}", f"{c.servers[0]}")) for c in cables]
        return len(network_of_cables(4, tuple(links), cables).groups[0].rings)

    assert mesh(10.0) == 6
    assert mesh(0.1) == 2  # a slow cable is better left out
