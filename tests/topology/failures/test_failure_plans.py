"""Failure plans: every link and every server of several plans, against the whole networks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Literal

import pytest
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.plan import (
    Cluster,
    Demand,
    GroupDemand,
    Link,
    Network,
    PairDemand,
    Plan,
    Ring,
    Route,
    cables,
    validate_network,
)
from torch_topoopt.topology.failures.degraded import DisconnectedError
from torch_topoopt.topology.failures.failure_plans import degraded, failure_figures, plan_failures
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.fixed_network import Cable, network_of_cables
from torch_topoopt.topology.routing.loads import link_load_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.topology.failures.failure_plans import FailureFigures

Ports = Literal["duplex", "simplex"]
SIZE = 10**12  # so that rounding to bytes is not seen


def made(servers: int, degree: int, ports: Ports, demand: Demand | None = None) -> Plan:
    cluster = Cluster(servers, degree, 100.0, ports)
    demand = demand or Demand((GroupDemand(tuple(range(servers)), SIZE),), ())
    plan = Plan.of_network(cluster, find_network(cluster, demand), demand, model="")
    failures = plan_failures(cluster, plan.network, demand)
    return dataclasses.replace(plan, failures=failures).validate()


def all_to_all(servers: int, size_bytes: int) -> tuple[PairDemand, ...]:
    pairs = [(a, b) for a in range(servers) for b in range(servers) if a != b]
    return tuple(PairDemand(a, b, size_bytes * (1 + (a + b) % 3)) for a, b in pairs)


MIXED = Demand(
    (
        GroupDemand(tuple(range(12)), SIZE),
        GroupDemand((0, 2, 4, 6, 8), SIZE // 2),
        GroupDemand((3, 4), SIZE // 3),
        GroupDemand((5,), SIZE),
    ),
    all_to_all(12, SIZE // 100),
)


def groups_without(demand: Demand, server: int) -> Demand:
    groups = [
        GroupDemand(tuple(s for s in g.servers if s != server), g.size_bytes)
        for g in demand.groups
        if g.servers != (server,)
    ]
    pairs = [p for p in demand.pairs if server not in (p.source, p.target)]
    return Demand(tuple(groups), tuple(pairs))


def pair_s(plan: Plan, network: Network, demand: Demand) -> Counter[tuple[int, int]]:
    """Seconds of every pair of servers with links, from the whole list of routes and rings."""
    rates = plan.cluster.pair_gbps(network.links)
    found: Counter[tuple[int, int]] = Counter()
    for link, size_bytes in zip(network.links, link_load_bytes(network, demand), strict=True):
        pair = (link.source, link.target)
        found[pair] += size_bytes / (rates[pair] * 1e9 / 8)
    return found


def busiest_s(plan: Plan, network: Network, demand: Demand) -> float:
    return max(pair_s(plan, network, demand).values(), default=0.0)


def packed_s(plan: Plan, network: Network, group: GroupDemand) -> Counter[tuple[int, int]]:
    """Seconds of a packing, in which a link is kept for the busier half of an AllReduce."""
    rates = plan.cluster.pair_gbps(network.links)
    inside = {pair: gbps for pair, gbps in rates.items() if {*pair} <= {*group.servers}}
    halves = [
        {pair: share * group.size_bytes / (rates[pair] * 1e9 / 8) for pair, share in sends.items()}
        for sends in _core.packed_all_reduce(sorted(group.servers), inside)
    ]
    most = [max(half.values()) for half in halves]
    parts = {
        pair: max(half.get(pair, 0.0) / m for half, m in zip(halves, most, strict=True))
        for pair in {*halves[0], *halves[1]}
    }
    return Counter({pair: part * sum(most) for pair, part in parts.items()})


def fastest_s(plan: Plan, network: Network, demand: Demand) -> float:
    """As `busiest_s`, with every group on its rings or, if faster, on a packing."""
    total = pair_s(plan, network, dataclasses.replace(demand, groups=()))
    for group in demand.groups:
        if len(group.servers) < 2:
            continue
        best = pair_s(plan, network, Demand((group,), ()))
        with contextlib.suppress(ValueError):  # the links of some groups do not join them
            packed = packed_s(plan, network, group)
            if max(best.values()) >= max(packed.values()) * (1 - 1e-6):
                best = packed
        total.update(best)
    return max(total.values(), default=0.0)


def each_loss(plan: Plan) -> Iterator[tuple[FailureFigures, Network, Demand]]:
    """The figures, the degraded network, checked by itself, and the demand that is left."""
    _, figures = failure_figures(plan)
    for entry in figures:
        assert entry.failure is not None
        if entry.all_reduce_s is None:
            continue
        lost = entry.failure.lost
        if entry.is_server:
            network, without = degraded(plan, server=lost), lost
            demand = groups_without(plan.demand, lost)
        else:
            network, without, demand = degraded(plan, link=lost), None, plan.demand
        yield entry, validate_network(plan.cluster, network, without=without), demand


PLANS = {
    "duplex ring": (5, 2, "duplex", None),
    "duplex": (8, 4, "duplex", None),
    "simplex": (9, 3, "simplex", None),
    "hexagon with triangles": (6, 4, "duplex", None),
    "duplex, groups and pairs": (12, 4, "duplex", MIXED),
    "simplex, groups and pairs": (12, 3, "simplex", MIXED),
    "pairs alone": (8, 4, "duplex", Demand((), all_to_all(8, SIZE))),
    "two servers": (2, 1, "duplex", None),
    "three servers": (3, 2, "simplex", None),
    "one server": (1, 1, "duplex", None),
}


@pytest.mark.parametrize("name", PLANS)
def test_what_is_left_is_a_valid_network_and_loaded_as_the_figures_say(name: str) -> None:
    plan = made(*PLANS[name])  # type: ignore[arg-type]
    whole, _ = failure_figures(plan)
    assert whole.busiest_s is not None
    if any(g.size_bytes for g in plan.demand.groups):
        assert whole.busiest_s == pytest.approx(fastest_s(plan, plan.network, plan.demand))
    for entry, network, demand in each_loss(plan):
        only_groups = dataclasses.replace(demand, pairs=())
        assert fastest_s(plan, network, demand) == pytest.approx(entry.busiest_s, rel=1e-6)
        if plan.demand.groups:
            assert fastest_s(plan, network, only_groups) == pytest.approx(
                entry.all_reduce_s, rel=1e-6
            )


@pytest.mark.parametrize(
    ("servers", "degree", "ports"),
    [(5, 4, "duplex"), (8, 4, "duplex"), (11, 6, "duplex"), (9, 3, "simplex"), (16, 4, "simplex")],
)
def test_a_lost_link_costs_one_ring_of_r_and_no_more(
    servers: int, degree: int, ports: Ports
) -> None:
    """With r rings that share no link, the busiest link carries r / (r - 1) of what it did."""
    plan = made(servers, degree, ports)
    rings = plan.network.groups[0].rings
    assert len(rings) == degree
    whole, figures = failure_figures(plan)
    assert whole.all_reduce_s is not None
    growth = [f.all_reduce_s / whole.all_reduce_s for f in figures if not f.is_server]  # type: ignore[operator]
    assert growth == pytest.approx([degree / (degree - 1)] * len(growth))
    assert len(growth) == len(plan.network.links) // (2 if ports == "duplex" else 1)


@pytest.mark.parametrize(("servers", "ports"), [(16, "duplex"), (32, "duplex"), (24, "simplex")])
def test_a_packing_reaches_the_bound_of_the_slowest_cut(servers: int, ports: Ports) -> None:
    """Also where two rings share the lost cable, so that repaired rings keep half of the rate."""
    plan = made(servers, 4, ports, Demand((GroupDemand(tuple(range(servers)), SIZE),), MIXED.pairs))
    _, figures = failure_figures(plan)
    for figure in figures:
        assert figure.failure is not None
        if figure.is_server:
            continue
        left = degraded(plan, link=figure.failure.lost)
        rates = plan.cluster.pair_gbps(left.links)
        links = [(*pair, gbps * 1e9 / 8) for pair, gbps in rates.items()]
        order = Ring(tuple(range(servers)), 1.0)
        group = _core.GraphGroup(servers, links, [order], 1e-6, 1e-6)
        bound_s = group.candidates("all_reduce", SIZE).bound_seconds
        assert figure.all_reduce_s == pytest.approx(bound_s, rel=6e-3)


def test_of_simplex_rings_the_cut_one_is_dropped_and_the_others_keep_their_proportion() -> None:
    plan = made(9, 3, "simplex")
    assert plan.failures is not None
    for failure in plan.failures.links:
        link = plan.network.links[failure.lost]
        (drop,) = failure.dropped
        (j,) = drop.rings
        order = plan.network.groups[0].rings[j].servers
        assert (link.source, link.target) in zip(order, (*order[1:], order[0]), strict=True)
        assert failure.detours == ()
        left = degraded(plan, link=failure.lost).groups[0].rings
        assert [ring.share for ring in left] == pytest.approx([1 / 2, 1 / 2])


@pytest.mark.parametrize(("servers", "ports"), [(24, "simplex"), (36, "duplex")])
def test_a_lost_server_costs_less_than_half_of_the_bandwidth(servers: int, ports: Ports) -> None:
    """Its neighbours send as much over one link of four less; what they relay comes on top."""
    plan = made(servers, 4, ports)
    whole, figures = failure_figures(plan)
    assert whole.all_reduce_s is not None
    members = servers - 1
    fewer = (members - 1) / members / ((servers - 1) / servers)
    growth = [f.all_reduce_s / whole.all_reduce_s / fewer for f in figures if f.is_server]  # type: ignore[operator]
    assert len(growth) == servers
    assert min(growth) == pytest.approx(4 / 3)
    assert max(growth) < 2


def test_a_ring_is_recovered_over_links_that_carry_little_as_in_section_7() -> None:
    """Half of the ports carry the rings of one stride, half MP: idle enough for whole detours."""
    everyone = (GroupDemand(tuple(range(8)), SIZE),)
    wired_for = Demand(everyone, all_to_all(8, SIZE // 2))
    cluster = Cluster(8, 4, 100.0)
    network = find_network(cluster, wired_for)
    assert len(network.groups[0].rings) == 2
    quiet = Demand(everyone, (PairDemand(0, 4, 1),))
    plan = Plan.of_network(cluster, network, quiet, model="")
    _, figures = failure_figures(plan)
    whole_s = busiest_s(plan, plan.network, quiet)
    of_links = [figure for figure in figures if not figure.is_server]
    for figure in of_links:
        assert figure.failure is not None
        assert figure.failure.dropped == ()
        left = degraded(plan, link=figure.failure.lost)
        assert busiest_s(plan, left, quiet) <= whole_s * (1 + 1e-9)
        assert figure.busiest_s is not None
        assert figure.busiest_s <= whole_s * (1 + 1e-9)
    detoured = [figure for figure in of_links if figure.failure and figure.failure.detours]
    assert 4 <= len(detoured) <= 8  # cables of the ring, but for those that have a parallel one


def test_routes_that_lose_nothing_stay_and_others_take_a_shortest_way() -> None:
    plan = made(12, 4, "duplex")
    before = plan.network.routes_by_pair()
    for i, (lost, _) in enumerate(cables(plan.cluster, plan.network)):
        assert plan.failures is not None
        chosen = {(r.servers[0], r.servers[-1]) for r in plan.failures.links[i].detours}
        network = degraded(plan, link=lost)
        link = plan.network.links[lost]
        gone = {(link.source, link.target), (link.target, link.source)}
        after = network.routes_by_pair()
        for pair, routes in before.items():
            hops = {h for r in routes for h in zip(r.servers, r.servers[1:], strict=False)}
            if pair not in chosen and not hops & gone:
                assert after[pair] == routes


def line_plan(servers: int) -> Plan:
    """Cables in a line: every loss but that of an end parts it."""
    cables = [Cable((s, s + 1), ("a", "b"), 1.0) for s in range(servers - 1)]
    links = [Link(s, 1, s + 1, 0) for s in range(servers - 1)]
    both = tuple(x for link in links for x in (link, link.reverse))
    cluster = Cluster(servers, 2, 1.0)
    network = network_of_cables(servers, both, cables)
    demand = Demand((GroupDemand(tuple(range(servers)), SIZE),), ())
    plan = Plan.of_network(cluster, network, demand, model="", mode="fixed")
    return dataclasses.replace(plan, failures=plan_failures(cluster, network, demand)).validate()


def test_a_network_that_falls_apart_is_said_to() -> None:
    plan = line_plan(4)
    assert plan.failures is not None
    assert [f.connected for f in plan.failures.links] == [False] * 3
    assert [f.connected for f in plan.failures.servers] == [True, False, False, True]
    with refused(DisconnectedError, "link", "server 1", 2):
        degraded(plan, link=3)
    with refused(DisconnectedError, "server 2", "reach"):
        degraded(plan, server=2)
    validate_network(plan.cluster, degraded(plan, server=3), without=3)
    _, figures = failure_figures(plan)
    assert [f.busiest_s is None for f in figures] == [True] * 3 + [False, True, True, False]


def test_one_of_two_parallel_cables_may_go() -> None:
    links = [Link(0, 0, 1, 0), Link(0, 1, 1, 1)]
    both = tuple(x for link in links for x in (link, link.reverse))
    cluster = Cluster(2, 2, 1.0)
    network = network_of_cables(2, both, [Cable((0, 1), ("a", "b"), 1.0)] * 2)
    demand = Demand((GroupDemand((0, 1), SIZE),), ())
    plan = Plan.of_network(cluster, network, demand, model="", mode="fixed")
    left = validate_network(cluster, degraded(plan, link=1))
    assert left.links == (links[1], links[1].reverse)
    whole, figures = failure_figures(plan)
    assert whole.all_reduce_s is not None
    assert [f.all_reduce_s for f in figures[:2]] == [2 * whole.all_reduce_s] * 2


def test_the_plan_keeps_its_failures_as_text_and_does_without_them() -> None:
    plan = made(12, 4, "duplex", MIXED)
    assert Plan.from_json(plan.to_json()) == plan
    bare = dataclasses.replace(plan, failures=None)
    assert "failures" not in bare.to_json()
    for server in range(12):
        assert degraded(bare, server=server) == degraded(plan, server=server)
    for lost, twin in cables(plan.cluster, plan.network):
        assert degraded(bare, link=lost) == degraded(plan, link=twin)


@pytest.mark.parametrize(
    ("loss", "tokens"),
    [
        ({}, ("link", "server")),
        ({"link": 0, "server": 0}, ("link", "server")),
        ({"link": 32}, ("link", 32, "0..31")),
        ({"link": -1}, ("link", -1, "0..31")),
        ({"server": 8}, ("server", 8)),
    ],
)
def test_a_loss_that_cannot_be_is_named(loss: dict[str, int], tokens: tuple[object, ...]) -> None:
    plan = made(8, 4, "duplex")
    with refused(ValueError, *tokens):
        degraded(plan, **loss)


def test_detours_are_loop_free_and_over_links_that_are_left() -> None:
    plan = made(16, 4, "simplex")
    assert plan.failures is not None
    seen = 0
    for failure in plan.failures.servers:
        for route in failure.detours:
            assert isinstance(route, Route)
            assert failure.lost not in route.servers
            assert len(set(route.servers)) == len(route.servers)
            seen += 1
    assert seen


def test_groups_that_differ_by_the_lost_server_alone_are_one_afterwards() -> None:
    cluster = Cluster(4, 2, 10.0)
    demand = Demand((GroupDemand((0, 1, 2, 3), 1 << 20), GroupDemand((0, 2, 3), 1 << 20)), ())
    network = find_network(cluster, demand)
    failures = plan_failures(cluster, network, demand)
    plan = Plan.of_network(cluster, network, demand, model="", mode="fixed")
    left = degraded(dataclasses.replace(plan, failures=failures), server=1)
    assert [sorted(group.servers) for group in left.groups] == [[0, 2, 3]]
