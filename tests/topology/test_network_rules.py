"""Every rule of a network on random clusters and demands: one corruption of a valid one is named.

tests/plan/test_plan.py holds each rule on a network by hand.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import (
    Cluster,
    Demand,
    DroppedRings,
    Failure,
    FailurePlan,
    Group,
    GroupDemand,
    Network,
    PairDemand,
    Plan,
    Ring,
    Route,
    cables,
    validate_failures,
    validate_network,
)
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.failures.failure_plans import degraded, plan_failures
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.fixed_network import Cable, network_of_cables
from torch_topoopt.topology.finder.single_ring import single_ring
from torch_topoopt.topology.routing.load_checks import validate_link_bytes, validate_loads
from torch_topoopt.topology.routing.loads import link_load_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

PRODUCERS = ("paper", "released", "best", "optimal routes", "single ring", "fixed cables")


def produce(by: str, cluster: Cluster, demand: Demand) -> Network:
    """A network from one of those that make them; ValueError for what the artifact cannot wire."""
    if by == "single ring":
        return single_ring(cluster, demand)
    if by == "optimal routes":
        return find_network(cluster, demand, routing="optimal")
    if by == "best":
        return find_network(cluster, demand, mode="best", search=NetworkSearch(budget_s=0.001))
    if by == "released":
        return find_network(cluster, demand, mode="released")
    network = find_network(cluster, demand)
    if by == "paper":
        return network
    rates = {pair: 10.0 + 5 * (sum(pair) % 3) for pair in _pairs(network)}  # of unequal cables
    plugged = [
        Cable((link.source, link.target), (f"p{link.source_port}", f"p{link.target_port}"), rate)
        for link in network.links
        for rate in [rates.get((link.source, link.target), 0.0)]
        if rate
    ]
    return network_of_cables(cluster.servers, network.links, plugged)


def _pairs(network: Network) -> set[tuple[int, int]]:
    return {(link.source, link.target) for link in network.links if link.source < link.target}


@st.composite
def wired(draw: st.DrawFn) -> tuple[Cluster, Network, random.Random]:
    """A random cluster, a network for a random demand, and a source of corruptions."""
    cluster, _, network, chance = draw(demanded())
    return cluster, network, chance


@st.composite
def demanded(draw: st.DrawFn) -> tuple[Cluster, Demand, Network, random.Random]:
    servers = draw(st.integers(4, 10))
    mode = draw(st.sampled_from(PRODUCERS))
    ports: Any = draw(st.sampled_from(["duplex", "simplex"]))
    if mode == "fixed cables":
        ports = "duplex"
    degrees = range(2, servers, 2) if ports == "duplex" else range(1, servers)
    cluster = Cluster(servers, draw(st.sampled_from(degrees)), 10.0, ports)
    everyone = GroupDemand(tuple(range(servers)), 1000)
    some = draw(st.sets(st.integers(0, servers - 1), min_size=2, max_size=servers - 1))
    groups = [everyone]
    pairs = []
    if mode not in ("released", "fixed cables") and draw(st.booleans()):
        groups.append(GroupDemand(tuple(sorted(some)), 500))
        pairs.append(PairDemand(min(some), max(some), 2000))
    demand = Demand(tuple(groups), tuple(pairs))
    try:
        network = produce(mode, cluster, demand)
    except ValueError:  # a network that the artifact cannot wire
        assert mode == "released"
        assume(False)
    return cluster, demand, network, random.Random(draw(st.integers(0, 99)))


def _refused(cluster: Cluster, network: Network, *tokens: object) -> None:
    with refused(DocumentError, *tokens):
        validate_network(cluster, network)


def _dropped_link(cluster: Cluster, network: Network, chance: random.Random) -> None:
    """On duplex its other direction is alone then; on simplex something cannot be reached."""
    i = chance.randrange(len(network.links))
    pair = (network.links[i].source, network.links[i].target)
    left = (*network.links[:i], *network.links[i + 1 :])
    if cluster.ports == "simplex":
        assume(all((link.source, link.target) != pair for link in left))
        with pytest.raises(DocumentError, match=r"disconnected|no link|not every server"):
            validate_network(cluster, replace(network, links=left))
    else:
        _refused(cluster, replace(network, links=left), "duplex", "other direction")


def _port_used_twice(cluster: Cluster, network: Network, chance: random.Random) -> None:
    i, j = chance.sample(range(len(network.links)), 2)
    ends = {"source": network.links[j].source, "source_port": network.links[j].source_port}
    moved = replace(network.links[i], **ends)
    assume(moved.source != moved.target)
    links = (*network.links[:i], moved, *network.links[i + 1 :])
    _refused(cluster, replace(network, links=links), "already used", "network.links")


def _port_that_is_not_there(cluster: Cluster, network: Network, chance: random.Random) -> None:
    i = chance.randrange(len(network.links))
    moved = replace(network.links[i], target_port=cluster.degree)
    links = (*network.links[:i], moved, *network.links[i + 1 :])
    _refused(cluster, replace(network, links=links), f"links[{i}]", f"port {cluster.degree}")


def _with_ring(network: Network, g: int, j: int, ring: Ring) -> Network:
    group = network.groups[g]
    rings = (*group.rings[:j], ring, *group.rings[j + 1 :])
    groups = (*network.groups[:g], Group(group.servers, rings), *network.groups[g + 1 :])
    return replace(network, groups=groups)


def _any_ring(network: Network, chance: random.Random) -> tuple[int, int, Ring]:
    g = chance.choice([g for g, group in enumerate(network.groups) if group.rings])
    j = chance.randrange(len(network.groups[g].rings))
    return g, j, network.groups[g].rings[j]


def _ring_that_misses_a_server(cluster: Cluster, network: Network, chance: random.Random) -> None:
    g, j, ring = _any_ring(network, chance)
    assume(len(ring.servers) > 2)
    short = Ring(ring.servers[1:], ring.share)
    _refused(cluster, _with_ring(network, g, j, short), "visit", "once")


def _ring_that_visits_twice(cluster: Cluster, network: Network, chance: random.Random) -> None:
    g, j, ring = _any_ring(network, chance)
    twice = Ring((*ring.servers[:-1], ring.servers[0]), ring.share)
    field = f"groups[{g}].rings[{j}].servers"
    _refused(cluster, _with_ring(network, g, j, twice), field, "twice")


def _shares_that_do_not_add_up(cluster: Cluster, network: Network, chance: random.Random) -> None:
    g, j, ring = _any_ring(network, chance)
    more = Ring(ring.servers, ring.share * 1.25)
    _refused(cluster, _with_ring(network, g, j, more), f"groups[{g}].rings", "shares")


def _group_twice(cluster: Cluster, network: Network, chance: random.Random) -> None:
    again = Group(network.groups[0].servers[::-1], network.groups[0].rings)
    last = len(network.groups)
    _refused(
        cluster,
        replace(network, groups=(*network.groups, again)),
        f"groups[{last}].servers",
        "network.groups[0]",
    )


def _listed(network: Network, chance: random.Random) -> tuple[tuple[Route, ...], int]:
    """The routes one by one, however the network holds them, and one of them."""
    routes = tuple(network.routes)
    assume(routes)
    return routes, chance.randrange(len(routes))


def _with_route(network: Network, routes: tuple[Route, ...], i: int, route: Route) -> Network:
    return replace(network, routes=(*routes[:i], route, *routes[i + 1 :]))


def _route_with_a_loop(cluster: Cluster, network: Network, chance: random.Random) -> None:
    routes, i = _listed(network, chance)
    way = routes[i].servers
    looped = Route((*way[:2], *way), routes[i].weight)
    field = f"routes[{i}].servers"
    _refused(cluster, _with_route(network, routes, i, looped), field, "twice")


def _route_over_no_link(cluster: Cluster, network: Network, chance: random.Random) -> None:
    routes, i = _listed(network, chance)
    ends = (routes[i].servers[0], routes[i].servers[-1])
    adjacent = {(link.source, link.target) for link in network.links}
    assume(ends not in adjacent)
    changed = _with_route(network, routes, i, Route(ends, 1.0))
    _refused(cluster, changed, f"routes[{i}]", f"server {ends[0]}", ends[1])


def _weights_that_do_not_add_up(cluster: Cluster, network: Network, chance: random.Random) -> None:
    routes, i = _listed(network, chance)
    half = Route(routes[i].servers, routes[i].weight / 2)
    source, target = half.servers[0], half.servers[-1]
    changed = _with_route(network, routes, i, half)
    _refused(cluster, changed, "weights", f"server {source}", target, 1)


def _pair_without_a_route(cluster: Cluster, network: Network, chance: random.Random) -> None:
    routes, i = _listed(network, chance)
    ends = (routes[i].servers[0], routes[i].servers[-1])
    assume(all((link.source, link.target) != ends for link in network.links))
    left = tuple(r for r in routes if (r.servers[0], r.servers[-1]) != ends)
    _refused(cluster, replace(network, routes=left), "route", f"server {ends[0]}", ends[1])


CORRUPTIONS = (
    _dropped_link,
    _port_used_twice,
    _port_that_is_not_there,
    _ring_that_misses_a_server,
    _ring_that_visits_twice,
    _shares_that_do_not_add_up,
    _group_twice,
    _route_with_a_loop,
    _route_over_no_link,
    _weights_that_do_not_add_up,
    _pair_without_a_route,
)


@pytest.mark.parametrize("corrupted", CORRUPTIONS, ids=lambda corruption: corruption.__name__[1:])
@settings(max_examples=8, deadline=None)
@given(made=wired())
def test_a_valid_network_passes_and_one_corruption_is_named(
    corrupted: Callable[[Cluster, Network, random.Random], None],
    made: tuple[Cluster, Network, random.Random],
) -> None:
    cluster, network, chance = made
    assert validate_network(cluster, network) is network
    corrupted(cluster, network, chance)


@settings(max_examples=25, deadline=None)
@given(made=demanded())
def test_bytes_on_links_add_up_on_every_network(
    made: tuple[Cluster, Demand, Network, random.Random],
) -> None:
    cluster, demand, network, chance = made
    assert validate_loads(cluster.servers, network, demand) is network
    load = list(link_load_bytes(network, demand))
    load[chance.randrange(len(load))] += 10**6
    with refused(DocumentError, "prediction.link_bytes"):
        validate_link_bytes(cluster.servers, network, demand, load)


@settings(max_examples=15, deadline=None)
@given(made=demanded())
def test_every_loss_leaves_a_valid_network_or_is_said_to_part_it(
    made: tuple[Cluster, Demand, Network, random.Random],
) -> None:
    """`plan_failures` and `degraded` validate what they return; here one entry is corrupted."""
    cluster, demand, network, chance = made
    failures = plan_failures(cluster, network, demand)
    plan = Plan.of_network(cluster, network, demand, model="", mode="fixed")
    plan = replace(plan, failures=failures)
    for of_kind, name in ((failures.links, "link"), (failures.servers, "server")):
        failure = chance.choice(of_kind)
        if failure.connected:
            lost: dict[str, Any] = {name: failure.lost}
            without = failure.lost if name == "server" else None
            validate_network(cluster, degraded(plan, **lost), without=without)
        wrong = replace(failure, connected=not failure.connected)
        entries = tuple(wrong if entry is failure else entry for entry in of_kind)
        with refused(DocumentError, f"failures.{name}s"):
            validate_failures(cluster, network, replace(failures, **{f"{name}s": entries}))


def _failures(servers: int, degree: int) -> tuple[Cluster, Network, FailurePlan]:
    cluster = Cluster(servers, degree, 10.0)
    demand = Demand((GroupDemand(tuple(range(servers)), 1000),), ())
    network = find_network(cluster, demand)
    return cluster, network, plan_failures(cluster, network, demand)


_DETOUR = (Route((1, 2), 1.0),)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"lost": 2}, ("failures.links[0].lost", 2, 0)),
        ({"connected": False, "dropped": (), "detours": ()}, ("not connected",)),
        ({"dropped": (DroppedRings(7, (0,)),)}, ("dropped[0].group", 7)),
        (
            {"dropped": (DroppedRings(0, (0,)), DroppedRings(0, (1,)))},
            ("dropped[1].group", 0),
        ),
        ({"dropped": (DroppedRings(0, (4,)),)}, ("[4]", "0..3")),
        ({"dropped": (DroppedRings(0, (1, 1)),)}, ("[1, 1]",)),
        ({"dropped": (DroppedRings(0, ()),)}, ("[]", "rings")),
        ({"dropped": (DroppedRings(0, (0, 1, 2, 3)),)}, (4, "group 0")),
        ({"detours": (Route((0, 1), 1.0),)}, ("server 0", 1)),
        ({"detours": _DETOUR}, ("server 1", 2)),
        ({"detours": (Route((0,), 1.0),)}, ("detours[0].servers", "[0]")),
        ({"detours": (Route((0, 7, 0, 7), 1.0),)}, ("way", "twice")),
        ({"detours": (Route((0, 7, 6, 1), 0.5),)}, ("server 0", 1, 0.5)),
        ({"detours": (Route((0, 7, 6, 1), -1.0),)}, ("detours[0].weight", -1.0, 0)),
    ],
)
def test_each_rule_of_a_failure_rejects(
    changes: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    cluster, network, failures = _failures(8, 4)
    lost = network.links[0]
    assert (lost.source, lost.target) == (0, 1)
    validate_failures(cluster, network, failures)
    wrong = replace(failures.links[0], **changes)
    with refused(DocumentError, *tokens):
        validate_failures(cluster, network, replace(failures, links=(wrong, *failures.links[1:])))


def test_every_cable_and_every_server_has_its_failure() -> None:
    cluster, network, failures = _failures(8, 4)
    assert len(failures.links) == len(cables(cluster, network)) == 16
    with refused(DocumentError, "failures.links", 15, 16):
        validate_failures(cluster, network, replace(failures, links=failures.links[1:]))
    more = (*failures.servers, Failure(8, True, (), ()))
    with refused(DocumentError, "failures.servers", 9, 8):
        validate_failures(cluster, network, replace(failures, servers=more))


def test_a_network_in_parts_after_a_loss_must_be_said_to_be() -> None:
    cluster, network, failures = _failures(4, 2)
    alone = Cluster(2, 1, 10.0)
    pair = find_network(alone, Demand((GroupDemand((0, 1), 1),), ()))
    parted = plan_failures(alone, pair, Demand((), ()))
    assert [failure.connected for failure in parted.links] == [False]
    claimed = replace(parted, links=(Failure(0, True, (), ()),))
    with refused(DocumentError, "connected"):
        validate_failures(alone, pair, claimed)
    detoured = replace(parted, links=(Failure(0, False, (), _DETOUR),))
    with refused(DocumentError, "dropped"):
        validate_failures(alone, pair, detoured)
    validate_failures(cluster, network, failures)
