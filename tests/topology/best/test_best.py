"""Mode best: never worse than mode paper, optimal where all networks can be tried."""

from __future__ import annotations

import random
from itertools import permutations
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.plan import (
    Cluster,
    Demand,
    GroupDemand,
    Network,
    PairDemand,
    validate_network,
)
from torch_topoopt.topology.best.find_best import demand_cost, find_best_network
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand
from torch_topoopt.topology.routing.hop_counts import hop_matrix, hop_summary

if TYPE_CHECKING:
    from collections.abc import Iterator

Ports = Literal["duplex", "simplex"]
Links = list[tuple[int, int]]


def data_parallel(servers: int) -> Demand:
    return Demand((GroupDemand(tuple(range(servers)), 10**9),), ())


@st.composite
def cases(draw: st.DrawFn) -> tuple[Cluster, Demand]:
    """A small cluster, groups that may overlap or be nested, and pairs."""
    servers = draw(st.integers(2, 10))
    ports: Ports = draw(st.sampled_from(["duplex", "simplex"]))
    degrees = [1] if servers == 2 else list(range(2 if ports == "duplex" else 1, servers))
    server = st.integers(0, servers - 1)
    sets = st.lists(server, min_size=1, max_size=servers, unique=True)
    size = st.integers(0, 10**9)
    groups = draw(st.lists(st.builds(GroupDemand, sets.map(tuple), size), max_size=3))
    ends = st.tuples(server, server, size).filter(lambda pair: pair[0] != pair[1])
    pairs = draw(st.lists(ends.map(lambda pair: PairDemand(*pair)), max_size=8))
    cluster = Cluster(servers, draw(st.sampled_from(degrees)), 100.0, ports)
    return cluster, Demand(tuple(groups), tuple(pairs))


@settings(max_examples=25, deadline=None)
@given(cases(), st.integers(0, 5))
def test_any_demand_is_served_at_least_as_well_as_by_the_papers_network(
    case: tuple[Cluster, Demand], seed: int
) -> None:
    cluster, demand = case
    found = find_best_network(cluster, demand, NetworkSearch(seed=seed, budget_s=0.001))
    validate_network(cluster, found)
    paper = find_network(cluster, demand)
    assert demand_cost(cluster, demand, found) <= demand_cost(cluster, demand, paper)
    assert [g.servers for g in found.groups] == [g.servers for g in paper.groups]
    assert found == find_network(
        cluster, demand, mode="best", search=NetworkSearch(seed=seed, budget_s=0.001)
    )


def test_every_link_stays_on_a_ring_and_servers_come_closer() -> None:
    for ports in ("duplex", "simplex"):
        cluster = Cluster(32, 4, 100.0, ports)
        found = find_best_network(cluster, data_parallel(32), NetworkSearch(budget_s=0.05))
        (group,) = found.groups
        orders = [ring.servers for ring in group.rings]
        hops = [hop for o in orders for hop in zip(o, (*o[1:], o[0]), strict=True)]
        assert sorted(hops) == sorted((link.source, link.target) for link in found.links)
        paper = find_network(cluster, data_parallel(32))
        closer = hop_summary(32, found.links).mean
        assert closer < hop_summary(32, paper.links).mean - 0.1


def test_six_servers_of_four_ports_get_two_rings_each_way_where_strides_give_one() -> None:
    cluster = Cluster(6, 4, 100.0)
    found = find_best_network(cluster, data_parallel(6), NetworkSearch(budget_s=0.01))
    paper = find_network(cluster, data_parallel(6))
    assert (len(found.groups[0].rings), len(paper.groups[0].rings)) == (4, 2)
    cost = demand_cost(cluster, data_parallel(6), found)
    assert 2 * cost[0] == pytest.approx(demand_cost(cluster, data_parallel(6), paper)[0])


def test_an_all_to_all_beside_an_all_reduce_loads_the_busiest_link_less() -> None:
    cluster = Cluster(24, 4, 100.0, "simplex")
    demand = default_demand(24)
    found = find_best_network(cluster, demand, NetworkSearch(budget_s=0.05))
    better = demand_cost(cluster, demand, found)
    assert better[0] < demand_cost(cluster, demand, find_network(cluster, demand))[0]


def test_each_pair_of_64_servers_has_paths_enough_to_spare_the_busiest_link() -> None:
    cluster, demand = Cluster(64, 8, 100.0), default_demand(64)
    found = find_best_network(cluster, demand, NetworkSearch(budget_s=0.2))
    paper = demand_cost(cluster, demand, find_network(cluster, demand))
    assert demand_cost(cluster, demand, found)[0] < 0.985 * paper[0]


def test_the_price_decides() -> None:
    cluster, demand = Cluster(12, 4, 100.0), data_parallel(12)
    seen: list[Network] = []

    def price(network: Network) -> float:
        seen.append(network)
        return float(len(seen))  # the first one, the paper's, is the cheapest

    assert find_best_network(cluster, demand, NetworkSearch(budget_s=0.01, price=price)) == seen[0]
    assert seen[0] == find_network(cluster, demand)
    assert len(seen) > 1


def pair_hops(servers: int, links: Links, pairs: tuple[PairDemand, ...]) -> float:
    """Bytes times hops of `pairs`, infinite if some servers do not reach each other."""
    hops = _core.hop_matrix(servers, links)
    if (hops < 0).any():
        return float("inf")
    return float(sum(p.size_bytes * int(hops[p.source, p.target]) for p in pairs))


def rings_of_all_servers(servers: int) -> Iterator[Links]:
    """All duplex networks of two ports that connect their servers: the orders of one ring."""
    for rest in permutations(range(1, servers)):
        if rest[0] < rest[-1]:
            order = (0, *rest)
            links = list(zip(order, (*order[1:], 0), strict=True))
            yield links + [(b, a) for a, b in links]


@pytest.mark.parametrize("servers", [4, 5, 6, 7])
def test_the_duplex_ring_for_a_small_demand_is_the_best_of_all(servers: int) -> None:
    """`test_all_networks.py` has the simplex networks."""
    chooser = random.Random(servers * 10 + 2)
    ends = chooser.sample(list(permutations(range(servers), 2)), 2 * servers - 2)
    pairs = tuple(PairDemand(a, b, chooser.randrange(1, 10**6)) for a, b in ends)
    least = min(pair_hops(servers, links, pairs) for links in rings_of_all_servers(servers))

    def price(network: Network) -> float:
        links = [(link.source, link.target) for link in network.links]
        return pair_hops(servers, links, pairs)

    cluster = Cluster(servers, 2, 100.0)
    found = find_best_network(cluster, Demand((), pairs), NetworkSearch(budget_s=0.02, price=price))
    assert price(found) <= least


def test_a_ring_of_a_group_runs_over_its_own_members() -> None:
    groups = ((0, 1, 2, 3, 4), (3, 4, 5, 6, 7, 8))
    demand = Demand(tuple(GroupDemand(g, 10**9) for g in groups), (PairDemand(0, 8, 10**6),))
    cluster = Cluster(10, 6, 100.0)
    found = find_best_network(cluster, demand, NetworkSearch(budget_s=0.01))
    assert (hop_matrix(10, found.links) >= 0).all()
    for servers in groups:
        (group,) = [g for g in found.groups if g.servers == servers]
        assert all(sorted(ring.servers) == list(servers) for ring in group.rings)


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ({"seed": -1}, ("seed", -1)),
        ({"budget_s": 0.0}, ("budget_s", 0.0, 0)),
        ({"budget_s": float("nan")}, ("budget_s", "nan")),
    ],
)
def test_arguments_out_of_range_are_named(
    arguments: dict[str, float], tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        find_best_network(Cluster(8, 4, 100.0), data_parallel(8), NetworkSearch(**arguments))  # type: ignore[arg-type]
