"""Ports of unequal rates, and more than one link between the same servers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused
from support.small_op_graphs import chain, one_all_reduce

from torch_topoopt.plan import (
    BYTES_PER_GBPS,
    Cluster,
    Demand,
    GroupDemand,
    Link,
    PairDemand,
    Plan,
    validate_network,
)
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.accelerators import accelerator, operator_seconds
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.sim import predict, predict_ideal_switch
from torch_topoopt.topology.best.find_best import demand_cost
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.failures.failure_plans import degraded, plan_failures
from torch_topoopt.topology.find_network import Mode, find_network
from torch_topoopt.topology.finder.fixed_network import Cable, network_of_cables
from torch_topoopt.topology.finder.group_rings import degree_split, ring_counts
from torch_topoopt.topology.measures.figures import figures_of
from torch_topoopt.topology.routing.load_checks import validate_link_bytes
from torch_topoopt.topology.routing.loads import link_load_bytes
from torch_topoopt.topology.routing.routes import plan_routes

if TYPE_CHECKING:
    from torch_topoopt.plan import Network

SIZE = 10**9
Ports = Literal["duplex", "simplex"]


def uneven(servers: int, rates: tuple[float, ...], ports: Ports) -> Cluster:
    return Cluster(
        servers, len(rates), min(rates), ports, link_latency_s=0.0, port_gbps=(rates,) * servers
    )


def everyone(servers: int) -> Demand:
    return Demand((GroupDemand(tuple(range(servers)), SIZE),), ())


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"port_gbps": ((1.0, 2.0),) * 3}, ("port_gbps", 3, 4)),
        ({"port_gbps": ((1.0, 2.0),) * 3 + ((1.0,),)}, ("port_gbps[3]", 1, 2)),
        (
            {"port_gbps": ((1.0, 0.0),) * 4},
            ("port_gbps[0][1]", 0.0),
        ),
        ({"port_gbps": ((1.0, float("nan")),) * 4}, ("port_gbps[0][1]", "nan")),
        (
            {"port_gbps": ((2.0, 2.0),) * 4},
            ("link_gbps", 1.0, 2.0),
        ),
        ({"degree": 6}, ("degree", 6, 3)),
    ],
)
def test_each_rule_of_unequal_ports_and_parallel_links_rejects(
    changes: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, *tokens):
        replace(Cluster(4, 2, 1.0), **changes).validate()


def test_a_link_is_as_fast_as_the_slower_of_its_ports() -> None:
    cluster = Cluster(2, 2, 1.0, port_gbps=((1.0, 4.0), (3.0, 2.0))).validate(any_degree=True)
    assert cluster.gbps_of(Link(0, 1, 1, 0)) == 3.0
    assert cluster.gbps_of(Link(1, 0, 0, 0)) == 1.0
    assert cluster.pair_gbps([Link(0, 1, 1, 0), Link(0, 0, 1, 1)]) == {(0, 1): 2.0}
    assert cluster.server_gbps(1) == 5.0
    assert Cluster(2, 2, 1.0).server_gbps(1) == 2.0


@pytest.mark.parametrize(
    ("servers", "rates", "ports"),
    [
        (8, (10.0, 40.0, 40.0, 10.0), "duplex"),
        (9, (10.0, 30.0, 20.0), "simplex"),
        (5, (100.0, 100.0, 25.0, 25.0), "duplex"),
    ],
)
@pytest.mark.parametrize("mode", ["paper", "best"])
def test_rings_share_in_proportion_so_that_all_links_are_busy_alike(
    servers: int, rates: tuple[float, ...], ports: Ports, mode: Mode
) -> None:
    cluster = uneven(servers, rates, ports)
    search = NetworkSearch(budget_s=0.01 if mode == "best" else None)
    network = find_network(cluster, everyone(servers), mode=mode, search=search)
    assert figures_of(cluster, network, everyone(servers)).all_reduce_over_bound == pytest.approx(1)
    load = link_load_bytes(network, everyone(servers))
    seconds = [
        size_bytes / (cluster.gbps_of(link) * BYTES_PER_GBPS)
        for link, size_bytes in zip(network.links, load, strict=True)
    ]
    least_s = 2 * (servers - 1) / servers * SIZE / (sum(rates) * BYTES_PER_GBPS)
    assert seconds == pytest.approx([least_s] * len(seconds), rel=1e-6)
    shares = sorted({round(ring.share, 9) for ring in network.groups[0].rings})
    assert shares == pytest.approx(sorted({rate / sum(rates) for rate in rates}))


@pytest.mark.parametrize(
    ("rates", "pair_bytes", "ports"),
    [
        # the AllReduce of 1 byte puts 6 on links, so its part is 6 / (6 + pair_bytes)
        ((10.0, 10.0, 10.0, 10.0), 6, 2),
        ((100.0, 10.0, 10.0, 10.0), 6, 1),
        ((100.0, 10.0, 10.0, 10.0), 1, 3),
        ((10.0, 10.0, 10.0, 10.0), 1, 4),
        ((40.0, 30.0, 20.0, 10.0), 3, 2),
        ((40.0, 30.0, 20.0, 10.0), 10**9, 1),
        ((40.0, 30.0, 20.0, 10.0), 0, 4),
    ],
)
def test_the_split_of_the_degree_counts_bandwidth_and_not_ports(
    rates: tuple[float, ...], pair_bytes: int, ports: int
) -> None:
    cluster = replace(uneven(4, rates, "simplex"), parallel_links=True)
    assert degree_split(cluster, (GroupDemand((0, 1, 2, 3), 1),), pair_bytes) == ports


def test_a_group_gets_as_many_rings_as_carry_its_share() -> None:
    """Two groups of the same servers but one; the first has 0.745 of the traffic. Of ports of 90,
    10, 10 and 10 it takes the one of 90, which is 0.75 of them; of ports alike it takes three."""
    groups = (
        GroupDemand(tuple(range(8)), 3 * SIZE),
        GroupDemand(tuple(range(7)), SIZE + SIZE // 20),
    )
    for rates, counts in (((90.0, 10.0, 10.0, 10.0), [1, 3]), ((10.0,) * 4, [3, 1])):
        shared = ring_counts(uneven(8, rates, "simplex"), groups, 4)
        assert list(shared.values()) == counts


def test_bytes_take_the_faster_way_in_proportion_to_its_slowest_link() -> None:
    """A square in which the way over 3 is three times as fast as that over 1."""
    links = [Link(s, p, t, q) for s, p, t, q in _square()]
    rates = {(0, 1): 10.0, (1, 2): 40.0, (0, 3): 30.0, (3, 2): 30.0}
    rates |= {(b, a): rate for (a, b), rate in rates.items()}
    spread = plan_routes(4, links, {}, {(0, 2): 100.0}, rates=rates)
    ways = [(r.servers, r.weight) for r in spread if (r.servers[0], r.servers[-1]) == (0, 2)]
    assert sorted(ways) == [((0, 1, 2), pytest.approx(0.25)), ((0, 3, 2), pytest.approx(0.75))]
    for paths, pairs in ((1, {(0, 2): 100.0}), (4, {})):  # one path; a pair that follows next hops
        single = plan_routes(4, links, {}, pairs, paths=paths, rates=rates)
        assert [r.servers for r in single if (r.servers[0], r.servers[-1]) == (0, 2)] == [(0, 3, 2)]
    alike = plan_routes(4, links, {}, {(0, 2): 100.0}, paths=1)
    assert [r.servers for r in alike if (r.servers[0], r.servers[-1]) == (0, 2)] == [(0, 1, 2)]


def test_a_second_pair_leaves_a_fast_link_only_when_it_is_busier() -> None:
    """Over 1 at 10 or over 3 at 30, one path each: the largest two go over 3 before one is slower
    there: 60 / 30 against 30 / 10."""
    links = [Link(s, p, t, q) for s, p, t, q in _square()]
    rates = {(0, 1): 10.0, (1, 2): 10.0, (0, 3): 30.0, (3, 2): 30.0}
    rates |= {(b, a): rate for (a, b), rate in rates.items()}
    pairs = {(0, 2): 30.0, (2, 0): 30.0, (3, 2): 30.0}
    routes = plan_routes(4, links, {}, pairs, paths=1, rates=rates)
    taken = {(r.servers[0], r.servers[-1]): r.servers for r in routes}
    assert taken[0, 2] == (0, 3, 2)
    pairs[3, 2] = 300.0
    routes = plan_routes(4, links, {}, pairs, paths=1, rates=rates)
    taken = {(r.servers[0], r.servers[-1]): r.servers for r in routes}
    assert taken[0, 2] == (0, 1, 2)
    assert taken[2, 0] == (2, 3, 0)


def _square() -> list[tuple[int, int, int, int]]:
    around = [(s, 0, (s + 1) % 4, 1) for s in range(4)]
    return around + [(t, q, s, p) for s, p, t, q in around]


def test_mode_best_gives_a_hot_pair_the_fast_ports() -> None:
    rates = (40.0, 10.0, 10.0)
    cluster = uneven(6, rates, "simplex")
    demand = Demand((GroupDemand(tuple(range(6)), 10**6),), (PairDemand(0, 3, 10**9),))
    network = find_network(cluster, demand, mode="best", search=NetworkSearch(budget_s=0.05))
    assert cluster.pair_gbps(network.links)[0, 3] >= 40.0


@st.composite
def uneven_cases(draw: st.DrawFn) -> tuple[Cluster, Demand]:
    """Servers whose ports have any rates, groups and pairs."""
    servers = draw(st.integers(3, 9))
    ports: Ports = draw(st.sampled_from(["duplex", "simplex"]))
    degrees = range(2, servers, 2) if ports == "duplex" else range(1, servers)
    degree = draw(st.sampled_from(degrees))
    row = st.lists(st.sampled_from([1.0, 2.5, 10.0]), min_size=degree, max_size=degree)
    table = draw(st.lists(row.map(tuple), min_size=servers, max_size=servers))
    server = st.integers(0, servers - 1)
    sets = st.lists(server, min_size=1, max_size=servers, unique=True).map(tuple)
    groups = draw(st.lists(st.builds(GroupDemand, sets, st.integers(0, 10**9)), max_size=3))
    ends = st.tuples(server, server, st.integers(0, 10**9)).filter(lambda p: p[0] != p[1])
    pairs = draw(st.lists(ends.map(lambda p: PairDemand(*p)), max_size=6))
    least = min(min(rates) for rates in table)
    cluster = Cluster(servers, degree, least, ports, port_gbps=tuple(table))
    return cluster, Demand(tuple(groups), tuple(pairs))


@settings(max_examples=25, deadline=None)
@given(uneven_cases())
def test_any_rates_and_demand_get_valid_networks_and_best_is_never_slower(
    case: tuple[Cluster, Demand],
) -> None:
    cluster, demand = case
    paper = find_network(cluster, demand)
    best = find_network(cluster, demand, mode="best", search=NetworkSearch(budget_s=0.001))
    for network in (paper, best):
        validate_network(cluster, network)
        validate_link_bytes(cluster.servers, network, demand, link_load_bytes(network, demand))
    assert demand_cost(cluster, demand, best) <= demand_cost(cluster, demand, paper)


def all_reduce_s(cluster: Cluster, network: Network) -> float:
    """Predicted seconds of one AllReduce of SIZE bytes over all servers."""
    op_graph = one_all_reduce(SIZE)
    strategy = data_parallel(op_graph, cluster.servers)
    compute_s = sum(
        operator_seconds(accelerator("cpu-core"), op_graph.operators[0], cluster.servers)
    )
    switch = predict_ideal_switch(op_graph, cluster, strategy)
    estimate = predict(op_graph, cluster, network, strategy)
    assert estimate.iteration_s >= switch.iteration_s * (1 - 1e-9)
    return estimate.iteration_s - compute_s


def test_predictions_price_every_link_at_its_own_rate() -> None:
    cluster = uneven(8, (10.0, 40.0, 40.0, 10.0), "duplex")
    closed_s = 2 * 7 / 8 * SIZE / (100.0 * BYTES_PER_GBPS)
    assert all_reduce_s(cluster, find_network(cluster, everyone(8))) == pytest.approx(closed_s)


def test_cables_that_are_given_are_priced_at_their_own_rates() -> None:
    """A ring of fast cables, and one of slow ones beside it: together, not all as the slow ones."""
    rates = ((40.0, 40.0, 10.0, 10.0),) * 5
    cluster = Cluster(5, 4, 10.0, link_latency_s=0.0, port_gbps=rates).validate(any_degree=True)
    links, plugged = [], []
    for stride, port, gbps in ((1, 0, 40.0), (2, 2, 10.0)):
        for s in range(5):
            t = (s + stride) % 5
            link = Link(s, port, t, port + 1)
            links += [link, link.reverse]
            ends = (f"{port}", f"{port + 1}") if s < t else (f"{port + 1}", f"{port}")
            plugged.append(Cable((min(s, t), max(s, t)), ends, gbps))
    network = validate_network(cluster, network_of_cables(5, tuple(links), plugged))
    assert [ring.share for ring in network.groups[0].rings] == pytest.approx([0.4, 0.4, 0.1, 0.1])
    closed_s = 2 * 4 / 5 * SIZE / (100.0 * BYTES_PER_GBPS)
    assert all_reduce_s(cluster, network) == pytest.approx(closed_s)


def test_strategies_are_searched_on_links_of_unequal_rates() -> None:
    cluster = uneven(4, (10.0, 40.0, 20.0), "simplex")
    made = planner.plan(
        chain(3, flops=10**9, parameters=10**6, output=10**5),
        cluster,
        PlanningOptions(evaluations=30),
    )
    estimate = predict(
        chain(3, flops=10**9, parameters=10**6, output=10**5), cluster, made.network, made.strategy
    )
    assert made.prediction.iteration_s == pytest.approx(estimate.iteration_s)
    assert Plan.from_json(made.to_json()) == made


def test_parallel_links_share_evenly_so_that_the_slower_one_decides() -> None:
    rates = ((10.0, 30.0),) * 2
    cluster = Cluster(2, 2, 10.0, link_latency_s=0.0, port_gbps=rates).validate(any_degree=True)
    links = (Link(0, 0, 1, 0), Link(0, 1, 1, 1))
    both = tuple(x for link in links for x in (link, link.reverse))
    network = network_of_cables(2, both, [Cable((0, 1), ("a", "b"), g) for g in (10.0, 30.0)])
    op_graph = one_all_reduce(SIZE)
    estimate = predict(op_graph, cluster, network, data_parallel(op_graph, 2))
    assert estimate.link_bytes == (SIZE // 2,) * 4
    assert all_reduce_s(cluster, network) == pytest.approx(SIZE / 2 / (10.0 * BYTES_PER_GBPS))


@pytest.mark.parametrize(
    ("servers", "degree", "ports"),
    [(2, 3, "duplex"), (3, 4, "duplex"), (4, 6, "duplex"), (5, 6, "simplex"), (5, 8, "duplex")],
)
def test_parallel_links_that_are_asked_for_carry_further_rings(
    servers: int, degree: int, ports: Ports
) -> None:
    cluster = Cluster(servers, degree, 10.0, ports, link_latency_s=0.0)
    with refused(DocumentError, "parallel"):
        find_network(cluster, everyone(servers))
    cluster = replace(cluster, parallel_links=True)
    network = find_network(cluster, everyone(servers))
    assert len(network.links) == servers * degree
    assert len(network.groups[0].rings) == degree
    closed_s = 2 * (servers - 1) / servers * SIZE / (degree * cluster.link_bytes_per_s)
    assert all_reduce_s(cluster, network) == pytest.approx(closed_s)
    plan = Plan.of_network(cluster, network, everyone(servers), model="")
    plan = replace(plan, failures=plan_failures(cluster, network, plan.demand)).validate()
    assert Plan.from_json(plan.to_json()) == plan
    validate_network(cluster, degraded(plan, link=0))
    validate_network(cluster, degraded(plan, server=1), without=1)


def test_pairs_on_parallel_links_are_wired_for_their_demand() -> None:
    cluster = Cluster(4, 6, 10.0, parallel_links=True)
    demand = Demand(everyone(4).groups, (PairDemand(0, 1, 100 * SIZE),))
    network = find_network(cluster, demand)
    between = sum((link.source, link.target) == (0, 1) for link in network.links)
    assert between >= 3


def test_the_text_of_a_plan_keeps_the_rates_of_ports_and_one_of_version_1_has_none() -> None:
    cluster = uneven(4, (10.0, 40.0), "simplex")
    plan = Plan.of_network(cluster, find_network(cluster, everyone(4)), everyone(4), model="")
    assert Plan.from_json(plan.to_json()) == plan
    whole = replace(cluster, port_gbps=((10, 40),) * 4)  # type: ignore[arg-type]
    assert replace(plan, cluster=whole).to_json() == plan.to_json()
    even = Cluster(4, 2, 10.0)
    plain = Plan.of_network(even, find_network(even, everyone(4)), everyone(4), model="")
    old = plain.to_json().replace('"version": 3', '"version": 1')
    old = old.replace(',\n    "parallel_links": false', "")
    assert "port_gbps" not in old
    assert "parallel_links" not in old
    assert replace(Plan.from_json(old), version=Plan.WITHOUT_LAYOUT) == plain
