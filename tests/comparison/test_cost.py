"""Capital cost: the table's own sums per server, and the ratios that the TopoOpt paper states."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.architectures import fat_tree, ideal_switch, jellyfish, topoopt
from torch_topoopt.comparison.cost import TABLE_2, capital_cost, equal_cost_gbps, parts_of, price_at
from torch_topoopt.plan import Cluster

SERVERS = 16  # a full fat-tree of 4 ports: the cost of a server is that of any full fat-tree


def cluster_of(gbps: float = 100.0, degree: int = 4, servers: int = SERVERS) -> Cluster:
    return Cluster(servers, degree, gbps)


def per_server(topology: object, cluster: Cluster) -> float:
    cost = capital_cost(topology, cluster)  # type: ignore[arg-type]
    assert cost is not None
    return cost.total / cluster.servers


def topoopt_cost(cluster: Cluster, optics: str = "patch-panel") -> float:
    return per_server(topoopt.build(cluster, optics=optics), cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gbps", "dollars"),
    [
        # one NIC, 6 transceivers, 5 switch ports and 3 fibres of 500 m a server
        (10.0, 185 + 6 * 20 + 5 * 94 + 3 * 150),
        (25.0, 185 + 6 * 39 + 5 * 144 + 3 * 150),
        (40.0, 354 + 6 * 39 + 5 * 144 + 3 * 150),
        (100.0, 678 + 6 * 99 + 5 * 187 + 3 * 150),
        (200.0, 815 + 6 * 198 + 5 * 374 + 6 * 150),
        (400.0, 2 * 815 + 6 * 396 + 5 * 748 + 12 * 150),
    ],
)
def test_a_server_of_a_full_fat_tree_costs_what_the_table_says(gbps: float, dollars: int) -> None:
    cluster = cluster_of()
    assert per_server(fat_tree.build(cluster, server_gbps=gbps), cluster) == pytest.approx(dollars)


@pytest.mark.parametrize(
    ("gbps", "dollars"), [(10.0, 1950), (25.0, 2026), (40.0, 2364), (100.0, 3252), (200.0, 3922)]
)
def test_a_server_of_topoopt_costs_nics_transceivers_panels_selectors_and_fibres(
    gbps: float, dollars: int
) -> None:
    # d = 4: 2 NICs of two ports, 4 transceivers, 8 panel ports, 4 1x2 switches, 4 fibres
    assert topoopt_cost(cluster_of(gbps)) == pytest.approx(dollars)


def test_the_papers_parts_of_128_servers() -> None:
    tree = parts_of(fat_tree.build(cluster_of(servers=128)))
    assert sum(tree.switch_ports.values()) == 640
    assert sum(tree.nics.values()) == 128
    assert sum(tree.transceivers.values()) == 128 + 640
    direct = parts_of(topoopt.build(cluster_of(servers=16)))
    assert direct.panel_ports == 16 * 2 * 4
    assert direct.selectors == sum(direct.transceivers.values()) == 16 * 4


def test_optical_switches_cost_a_third_more_than_patch_panels_on_average() -> None:
    """Section 5.2: "1.33x, on average", met over the settings d = 4, B = 100 and d = 8, B = 200."""
    ratios = [
        topoopt_cost(cluster_of(gbps, degree), "ocs") / topoopt_cost(cluster_of(gbps, degree))
        for degree, gbps in ((4, 100.0), (8, 200.0))
    ]
    assert ratios == pytest.approx([1.363, 1.301], abs=1e-3)
    assert sum(ratios) / 2 == pytest.approx(1.33, abs=0.01)


def test_the_ideal_switch_costs_about_three_times_topoopt() -> None:
    """Section 5.2: 3.2x on average, 3.0x at 4 394 servers. At d = 4, B = 100 the table gives 2.94;
    at d = 8, B = 200 it gives 4.87, for which the text has no counterpart."""
    cluster = cluster_of()
    ideal = per_server(ideal_switch.build(cluster), cluster)
    assert ideal / topoopt_cost(cluster) == pytest.approx(2.935, abs=1e-3)
    large = cluster_of(200.0, 8)
    assert per_server(ideal_switch.build(large), large) / topoopt_cost(large) == pytest.approx(
        4.868, abs=1e-3
    )


def test_the_expander_is_the_cheapest() -> None:
    cluster = cluster_of()
    expander = per_server(jellyfish.build(cluster), cluster)
    assert expander == pytest.approx(2 * 678 + 4 * 99 + 2 * 150)
    assert expander < topoopt_cost(cluster) < per_server(ideal_switch.build(cluster), cluster)


@pytest.mark.parametrize("gbps", [10.0, 40.0, 100.0, 200.0])
def test_the_equal_cost_fat_tree_costs_the_same(gbps: float) -> None:
    cluster = cluster_of(gbps)
    budget = topoopt_cost(cluster) * SERVERS
    found = equal_cost_gbps(cluster, budget)
    tree = fat_tree.build(cluster, server_gbps=found)
    assert per_server(tree, cluster) * SERVERS == pytest.approx(budget, rel=1e-9)
    # at 10 Gb/s optics cost more than they carry: the fat-tree gets more than d x B
    assert (found > 4 * gbps) == (gbps == 10.0)


def test_a_budget_below_the_cheapest_fat_tree_is_refused() -> None:
    with refused(ValueError, "budget", 100):
        equal_cost_gbps(cluster_of(), 100.0)


@pytest.mark.parametrize(
    ("gbps", "dollars"), [(1, 185), (10, 185), (32.5, 269.5), (150, 746.5), (800, 3260)]
)
def test_prices_between_and_beyond_the_table(gbps: float, dollars: float) -> None:
    assert price_at(TABLE_2.nic, gbps) == pytest.approx(dollars)
