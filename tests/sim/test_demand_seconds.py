"""The time of a demand on a network's best schedules."""

from __future__ import annotations

import pytest

from torch_topoopt.plan import Cluster, Demand, GroupDemand, PairDemand
from torch_topoopt.sim.demand_seconds import demand_seconds, fastest_for, reduced_bytes
from torch_topoopt.topology.best.find_best import find_best_network
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import figures_of
from torch_topoopt.topology.routing.hop_counts import hop_summary


def test_all_reduces_and_pairs_follow_each_other() -> None:
    cluster = Cluster(8, 2, 8.0, link_latency_s=0.0)  # 1 GB/s a link, one ring both ways
    reduced = GroupDemand(tuple(range(8)), 8 * 10**8)
    sent = PairDemand(0, 1, 10**9)
    network = find_network(cluster, Demand((reduced,), (sent,)))
    both = demand_seconds(cluster, Demand((reduced,), (sent,)), network)
    alone = demand_seconds(cluster, Demand((reduced,), ()), network)
    assert alone == pytest.approx(2 * 7 / 8 * 0.8 / 2, rel=1e-6)
    assert both - alone == pytest.approx(1.0, rel=1e-6)


def test_mode_best_takes_the_kautz_network_where_its_schedules_are_faster() -> None:
    """Short AllReduces on simplex ports: of 64 servers no union of rings has a diameter of 3."""
    cluster = Cluster(64, 4, 100.0, "simplex")
    demand = Demand((GroupDemand(tuple(range(64)), 10**4),), ())

    def price(network: object) -> float:
        return demand_seconds(cluster, demand, network)  # type: ignore[arg-type]

    rings = find_best_network(cluster, demand, NetworkSearch(budget_s=0.1))
    best = find_best_network(cluster, demand, NetworkSearch(budget_s=0.1, price=price))
    assert price(best) < price(rings)
    assert hop_summary(64, best.links).diameter == 3


def test_only_mode_best_searches_for_the_least_seconds() -> None:
    cluster = Cluster(8, 4, 100.0)
    demand = Demand((GroupDemand(tuple(range(8)), 10**4),), ())
    search = NetworkSearch(seed=3)
    assert fastest_for("paper", cluster, demand, search) == search
    priced = fastest_for("best", cluster, demand, search)
    network = find_network(cluster, demand)
    assert priced.seed == 3
    assert priced.price is not None
    assert priced.price(network) == demand_seconds(cluster, demand, network)


def test_figures_count_the_links_of_schedules_instead_of_rings() -> None:
    """Half of the ports are wired for other traffic: rings leave them idle."""
    cluster = Cluster(8, 4, 100.0)
    pairs = tuple(PairDemand(a, b, 10**9) for a in range(8) for b in range(8) if a != b)
    demand = Demand((GroupDemand(tuple(range(8)), 10**9),), pairs)
    network = find_network(cluster, demand)
    assert len(network.groups[0].rings) == 2
    rings = figures_of(cluster, network, demand)
    schedules = figures_of(cluster, network, demand, reduced_bytes(cluster, network))
    assert rings.all_reduce_over_bound == pytest.approx(2)
    assert schedules.all_reduce_over_bound == pytest.approx(1, rel=0.01)
    assert schedules.max_link_load < rings.max_link_load
    assert schedules.all_to_all_over_bound == rings.all_to_all_over_bound
