"""Each rule of a Plan: the plan by hand keeps them all, and one change breaks exactly one."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.plan import (
    AllReduceTime,
    Cluster,
    CostModel,
    Demand,
    Group,
    GroupDemand,
    Link,
    Network,
    PairDemand,
    Placement,
    Plan,
    Ring,
    Route,
    validate_demand,
    validate_network,
)
from torch_topoopt.plan.codec import DocumentError

FOUR = Cluster(4, 2, 1.0)
RingPlan = Callable[..., Plan]


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"servers": 0}, ("servers", 1)),
        ({"degree": 0}, ("degree", 1)),
        ({"degree": 4}, ("degree", 4, 3)),
        ({"degree": 1}, ("degree", 1, 4, 2)),
        ({"link_gbps": 0.0}, ("link_gbps", 0.0, 0)),
        ({"link_gbps": -1.0}, ("link_gbps", -1.0)),
        ({"link_gbps": float("nan")}, ("link_gbps", "nan")),
        ({"link_gbps": float("inf")}, ("link_gbps", "inf")),
        ({"link_latency_s": -1e-6}, ("link_latency_s", "-1e-06", 0)),
        ({"link_latency_s": float("nan")}, ("link_latency_s", "nan")),
        ({"host_memory_gb": 0.0}, ("host_memory_gb", "0.0")),
        ({"accelerators_per_server": 0}, ("accelerators_per_server", 1)),
    ],
)
def test_each_rule_of_a_cluster_rejects(
    changes: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    FOUR.validate()
    with refused(DocumentError, *tokens):
        dataclasses.replace(FOUR, **changes).validate()


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(1, 1, 1.0),
        Cluster(1, 4, 1.0),
        Cluster(2, 1, 1.0),
        Cluster(4, 3, 1.0, "simplex"),
        Cluster(5, 4, 1.0),
    ],
)
def test_odd_degrees_are_fine_on_simplex_ports_and_for_two_servers(cluster: Cluster) -> None:
    assert cluster.validate() is cluster


def replace_link(network: Network, i: int, link: Link) -> Network:
    links = [*network.links[:i], link, *network.links[i + 1 :]]
    return dataclasses.replace(network, links=tuple(links))


@pytest.mark.parametrize(
    ("link", "tokens"),
    [
        (Link(4, 0, 1, 1), ("network.links[0]", "server 4", "0..3")),
        (Link(0, 0, -1, 1), ("network.links[0]", "server -1", "0..3")),
        (Link(0, 2, 1, 1), ("network.links[0]", "port 2", "0..1")),
        (Link(0, 0, 1, -1), ("network.links[0]", "port -1", "0..1")),
        (Link(0, 0, 0, 1), ("network.links[0]", "server 0", "itself")),
        (Link(1, 0, 3, 1), ("network.links[1]", "port 0", "server 1", "[0]")),
        (Link(0, 0, 2, 1), ("network.links[1]", "port 1", "server 2", "[0]")),
    ],
)
def test_each_rule_of_a_link_rejects(
    ring_plan: RingPlan, link: Link, tokens: tuple[object, ...]
) -> None:
    network = ring_plan(4).network
    with refused(DocumentError, *tokens):
        validate_network(FOUR, replace_link(network, 0, link))


def test_a_duplex_cable_without_its_other_direction_is_refused(ring_plan: RingPlan) -> None:
    network = ring_plan(4).network
    one_way = dataclasses.replace(network, links=network.links[:-1])
    with refused(DocumentError, "links[3]", "direction"):
        validate_network(FOUR, one_way)
    simplex = ring_plan(4, ports="simplex")
    assert validate_network(simplex.cluster, simplex.network) is simplex.network


def two_halves(joined_one_way: bool) -> tuple[Cluster, Network]:
    links = [Link(0, 0, 1, 0), Link(1, 0, 0, 0), Link(2, 0, 3, 0), Link(3, 0, 2, 0)]
    if joined_one_way:
        links.append(Link(1, 1, 2, 1))
    return Cluster(4, 2, 1.0, "simplex"), Network(tuple(links), (), ())


@pytest.mark.parametrize("joined_one_way", [False, True])
def test_a_disconnected_network_is_refused_in_either_direction(joined_one_way: bool) -> None:
    with refused(DocumentError, "network.links", "server 2", "server 0"):
        validate_network(*two_halves(joined_one_way))


EVERYONE = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("group", "tokens"),
    [
        (Group((), ()), ("groups[0].servers", "empty")),
        (Group((0, 9), (Ring((0, 9), 1.0),)), ("groups[0].servers", "server 9", "0..3")),
        (Group((0, 1, 1), (Ring((0, 1), 1.0),)), ("groups[0].servers", "twice")),
        (Group(EVERYONE, ()), ("groups[0].rings", 4)),
        (Group(EVERYONE, (Ring((), 1.0),)), ("rings[0].servers", "empty")),
        (Group(EVERYONE, (Ring((0, 1, 2, 4), 1.0),)), ("rings[0].servers", "server 4")),
        (Group(EVERYONE, (Ring((0, 1, 2, 2, 3), 1.0),)), ("rings[0].servers", "twice")),
        (Group(EVERYONE, (Ring((0, 1, 2), 1.0),)), ("visit", "once")),
        (Group((0, 1), (Ring((0, 1, 2), 1.0),)), ("visit", "once")),
        (Group(EVERYONE, (Ring(EVERYONE, 0.0), Ring(EVERYONE, 1.0))), ("share", 0.0, 0)),
        (Group(EVERYONE, (Ring(EVERYONE, float("nan")),)), ("share", 0, "nan")),
        (Group(EVERYONE, (Ring(EVERYONE, 0.9),)), ("groups[0].rings", 0.9, 1)),
        (
            Group(EVERYONE, (Ring(EVERYONE, 1.0),), ((0, 1, 2), (3,))),
            ("groups[0].grid[1]", 1, 3),
        ),
        (Group(EVERYONE, (Ring(EVERYONE, 1.0),), (EVERYONE,)), ("grid", "1 x 4", "2 x 2")),
        (
            Group(EVERYONE, (Ring(EVERYONE, 1.0),), ((0, 1), (2, 2))),
            ("groups[0].grid", "twice"),
        ),
        (
            Group((0, 1, 2), (Ring((0, 1, 2), 1.0),), ((0, 1), (2, 3))),
            ("groups[0].grid", "once"),
        ),
    ],
)
def test_each_rule_of_a_group_rejects(
    ring_plan: RingPlan, group: Group, tokens: tuple[object, ...]
) -> None:
    network = dataclasses.replace(ring_plan(4).network, groups=(group,))
    with refused(DocumentError, *tokens):
        validate_network(FOUR, network)


@pytest.mark.parametrize(
    ("route", "tokens"),
    [
        (Route((), 1.0), ("routes[0].servers", "empty")),
        (Route((0, 1, 4), 1.0), ("routes[0].servers", "server 4", "0..3")),
        (Route((0, 1, 0, 3, 2), 1.0), ("routes[0].servers", "twice")),
        (Route((0,), 1.0), ("routes[0].servers", "source")),
        (Route((0, 2), 1.0), ("routes[0]", "server 0", 2)),
        (Route((0, 1, 2), 0.0), ("routes[0].weight", 0.0, 0)),
        (Route((0, 1, 2), float("nan")), ("routes[0].weight", 0, "nan")),
        (Route((0, 1, 2), 0.5), ("server 0", 2, 0.5, 1)),
        (Route((0, 1), 1.0), ("server 0", 2)),
    ],
)
def test_each_rule_of_a_route_rejects(
    ring_plan: RingPlan, route: Route, tokens: tuple[object, ...]
) -> None:
    network = ring_plan(4).network
    assert network.routes[0] == Route((0, 1, 2), 1.0)
    with refused(DocumentError, *tokens):
        validate_network(FOUR, dataclasses.replace(network, routes=(route, *network.routes[1:])))


@pytest.mark.parametrize(
    ("demand", "tokens"),
    [
        (Demand((GroupDemand((), 1),), ()), ("demand.groups[0].servers", "empty")),
        (Demand((GroupDemand((4,), 1),), ()), ("demand.groups[0].servers", "server 4")),
        (Demand((GroupDemand((1, 1), 1),), ()), ("demand.groups[0].servers", "twice")),
        (Demand((GroupDemand((1,), -1),), ()), ("demand.groups[0].size_bytes", -1)),
        (Demand((), (PairDemand(0, 4, 1),)), ("demand.pairs[0]", "server 4", "0..3")),
        (Demand((), (PairDemand(2, 2, 1),)), ("demand.pairs[0]", "twice")),
        (Demand((), (PairDemand(0, 1, -1),)), ("demand.pairs[0].size_bytes", -1)),
    ],
)
def test_each_rule_of_a_demand_rejects(
    ring_plan: RingPlan, demand: Demand, tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, *tokens):
        validate_demand(FOUR, demand)
    with refused(DocumentError, *tokens):
        dataclasses.replace(ring_plan(4), demand=demand).validate()


def test_each_rule_of_a_plan_as_a_whole_rejects(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    assert plan.validate() is plan
    with refused(DocumentError, "degree", 1, 4):
        dataclasses.replace(plan, cluster=Cluster(4, 1, 1.0)).validate()
    with refused(DocumentError, "server 0", 2):
        dataclasses.replace(plan, network=dataclasses.replace(plan.network, routes=())).validate()
    with refused(DocumentError, "strategy[0].servers", "server 7", "0..3"):
        dataclasses.replace(plan, strategy=(Placement("layer", (7,)),)).validate()
    prediction = dataclasses.replace(plan.prediction, link_bytes=(1,))
    with refused(DocumentError, "prediction.link_bytes", 1, 8):
        dataclasses.replace(plan, prediction=prediction).validate()


def test_a_plan_for_another_cluster_size_is_refused(ring_plan: RingPlan) -> None:
    with refused(DocumentError, "server 5", "0..4"):
        dataclasses.replace(ring_plan(6), cluster=Cluster(5, 2, 1.0)).validate()
    with refused(DocumentError, "server 4", "server 0", "disconnected"):
        dataclasses.replace(ring_plan(4), cluster=Cluster(5, 2, 1.0)).validate()


def test_routes_by_pair_lists_links_and_routes_for_every_pair(ring_plan: RingPlan) -> None:
    table = ring_plan(5).network.routes_by_pair()
    assert set(table) == {(a, b) for a in range(5) for b in range(5) if a != b}
    assert table[0, 1] == (Route((0, 1), 1.0),)
    assert table[0, 2] == (Route((0, 1, 2), 1.0),)


def test_a_link_reversed_twice_is_itself() -> None:
    link = Link(0, 1, 2, 3)
    assert link.reverse == Link(2, 3, 0, 1)
    assert link.reverse.reverse == link


def test_ten_gbps_are_one_and_a_quarter_gigabytes_per_second() -> None:
    assert Cluster(2, 1, 10.0).link_bytes_per_s == 1.25e9


def test_the_digest_distinguishes_plans_and_is_the_same_in_another_process(
    ring_plan: RingPlan,
) -> None:
    plan = ring_plan(4)
    assert plan.digest() != dataclasses.replace(plan, seed=1).digest()
    code = "import sys; from torch_topoopt.plan import Plan; " + (
        "print(Plan.from_json(sys.stdin.read()).digest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        input=plan.to_json(),
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=True,
    )
    assert other.stdout.strip() == plan.digest()


def test_the_cost_model_is_an_optional_section(ring_plan: RingPlan) -> None:
    plan = ring_plan()
    assert "cost_model" not in plan.to_json()
    measured = dataclasses.replace(plan, cost_model=CostModel(2e-5, 1e-5, 3e-10))
    assert Plan.from_json(measured.to_json()) == measured.validate()
    assert "beta_s_per_byte" not in measured.to_json()
    assert "all_reduce" not in measured.to_json()
    times = (AllReduceTime("tree", 1024, 1e-3), AllReduceTime("multi_ring", 1024, 2e-3))
    timed = dataclasses.replace(plan, cost_model=CostModel(2e-5, 1e-5, 3e-10, None, times))
    assert Plan.from_json(timed.to_json()) == timed.validate()
    with refused(DocumentError, "all_reduce[0].algorithm", "trees"):
        Plan.from_json(timed.to_json().replace('"tree"', '"trees"'))


def test_a_cost_model_of_version_3_is_read_by_its_old_names(ring_plan: RingPlan) -> None:
    plan = dataclasses.replace(ring_plan(), cost_model=CostModel(2e-5, 1e-5, 3e-10))
    text = plan.to_json()
    for new, old in (
        ("alpha_s", "message_s"),
        ("per_hop_latency_s", "hop_s"),
        ("gamma_s_per_byte", "reduce_s_per_byte"),
    ):
        text = text.replace(new, old)
    assert Plan.from_json(text.replace('"version": 5', '"version": 3')) == plan
    with refused(DocumentError, "cost_model.message_s", "unknown"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("field", "value", "tokens"),
    [
        ("alpha_s", 0.0, ("cost_model.alpha_s", 0.0, 0)),
        ("beta_s_per_byte", 0.0, ("cost_model.beta_s_per_byte", 0.0, 0)),
        (
            "per_hop_latency_s",
            -1.0,
            ("cost_model.per_hop_latency_s", -1.0, 0),
        ),
        (
            "gamma_s_per_byte",
            -1e-9,
            ("cost_model.gamma_s_per_byte", "-1e-09", 0),
        ),
        (
            "all_reduce",
            (AllReduceTime("tree", 8, 1.0), AllReduceTime("tree", 0, 1.0)),
            ("cost_model.all_reduce[1].bytes", 0, 1),
        ),
        (
            "all_reduce",
            (AllReduceTime("ring", 8, math.inf),),
            ("cost_model.all_reduce[0].seconds", 0, "inf"),
        ),
    ],
)
def test_a_wrong_cost_is_named(
    ring_plan: RingPlan, field: str, value: Any, tokens: tuple[object, ...]
) -> None:
    model = dataclasses.replace(CostModel(2e-5, 1e-5, 3e-10), **{field: value})
    with refused(DocumentError, *tokens):
        dataclasses.replace(ring_plan(), cost_model=model).validate()


@pytest.mark.parametrize(
    ("servers", "stride"),
    [
        ((0, 1, 2, 3), 1),
        ((0, 3, 2, 1), 3),
        ((8, 2, 5), 1),
        ((8, 5, 2), 2),
        ((0, 2, 1, 3), None),
        ((4,), None),
    ],
)
def test_a_ring_closes_and_has_a_stride_among_its_members(
    servers: tuple[int, ...], stride: int | None
) -> None:
    ring = Ring(servers, 1.0)
    assert [source for source, _ in ring.hops] == list(servers)
    assert [target for _, target in ring.hops] == [*servers[1:], servers[0]]
    assert ring.stride == stride
