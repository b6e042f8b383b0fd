"""Plans on cables that exist: any graph, and plans that were made elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.fabric.cluster.static_plan import (
    cluster_of,
    connected_part,
    network_of,
    place,
)
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry, SwitchEntry
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Demand, Plan, validate_network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.plans import RingPlan


def make_file(count: int, cables: Sequence[tuple[int, int]], *, gbps: float = 1.0) -> ClusterFile:
    """Servers whose k-th port is their k-th cable; the first ports of all stay dark."""
    ports = [[PortEntry("dark", f"10.9.{server}.1/30")] for server in range(count)]
    ends = []
    for number, cable in enumerate(cables):
        names = []
        for last, server in enumerate(cable, start=1):
            name = f"p{len(ports[server])}"
            ports[server].append(PortEntry(name, f"10.1.{number}.{last}/30", gbps))
            names.append(f"h{server}:{name}")
        ends.append((names[0], names[1]))
    servers = tuple(
        ServerEntry(f"h{i}", f"10.0.0.{i + 1}", ports=tuple(own)) for i, own in enumerate(ports)
    )
    return ClusterFile(1, "lab", servers, tuple(ends)).validate()


def plan_on(file: ClusterFile) -> Plan:
    return Plan.of_network(
        cluster_of(file), network_of(file), Demand((), ()), model="", mode="fixed"
    )


RING = [(0, 1), (1, 2), (3, 2), (0, 3)]


def test_the_slowest_server_says_what_joins_accelerators() -> None:
    file = make_file(4, RING)
    assert cluster_of(file).inside_gbps is None
    servers = [
        replace(server, inside_gbps=rate)
        for server, rate in zip(file.servers, (3600.0, None, 900.0, 3600.0), strict=True)
    ]
    assert cluster_of(replace(file, servers=tuple(servers))).inside_gbps == 900


def test_a_ring_of_cables_is_planned_as_its_two_rings() -> None:
    file = make_file(4, RING)
    plan = plan_on(file)
    assert [ring.servers for ring in plan.network.groups[0].rings] == [(0, 1, 2, 3), (0, 3, 2, 1)]
    assert place(plan, file) == {
        (0, 0): "h0:p1",
        (1, 0): "h1:p1",
        (1, 1): "h1:p2",
        (2, 0): "h2:p1",
        (3, 0): "h3:p1",
        (2, 1): "h2:p2",
        (0, 1): "h0:p2",
        (3, 1): "h3:p2",
    }


def test_any_connected_graph_will_do() -> None:
    # A triangle with a tail of two, and two cables between 3 and 4.
    file = make_file(5, [(0, 1), (1, 2), (2, 0), (2, 3), (4, 3), (3, 4)])
    plan = plan_on(file)
    assert plan.cluster.degree == 3
    assert len(plan.network.links) == 12
    validate_network(plan.cluster, plan.network)
    assert sorted(place(plan, file).values()) == sorted(
        end for cable in file.cables for end in cable
    )


def test_the_ring_takes_the_fast_cables_and_every_port_keeps_its_rate() -> None:
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]
    slow = {(0, 1), (2, 3)}
    file = make_file(4, pairs)
    for number, pair in enumerate(pairs):
        for end in file.cables[number]:
            server, port = file.ports[end]
            entry = file.servers[server]
            ports = tuple(replace(p, gbps=0.1 if pair in slow else 10.0) if p == port else p
                          for p in entry.ports)  # fmt: skip
            servers = list(file.servers)
            servers[server] = replace(entry, ports=ports)
            file = replace(file, servers=tuple(servers))
    first = plan_on(file).network.groups[0].rings[0].servers
    hops = {frozenset(hop) for hop in zip(first, (*first[1:], first[0]), strict=True)}
    assert hops.isdisjoint(map(frozenset, slow))
    cluster, network = cluster_of(file), network_of(file)
    assert cluster.link_gbps == 0.1
    for link in network.links:
        pair = (link.source, link.target)
        assert cluster.gbps_of(link) == (0.1 if {pair, pair[::-1]} & slow else 10.0)


def test_a_plan_made_elsewhere_finds_its_cables_under_any_names_of_ports(
    ring_plan: RingPlan,
) -> None:
    plan = ring_plan(4)
    file = make_file(4, RING)
    placed = place(plan, file)
    for link in plan.network.links:
        ends = (placed[link.source, link.source_port], placed[link.target, link.target_port])
        assert ends in file.cables or ends[::-1] in file.cables
        assert [file.ports[end][0] for end in ends] == [link.source, link.target]


@pytest.mark.parametrize(
    ("file", "tokens"),
    [
        (
            make_file(4, [(0, 1), (1, 2), (2, 3), (0, 2)]),
            ("h0", "h3", "server 0", "port 1", "server 3", "port 0", "h1", "h2"),
        ),
        (
            make_file(3, [(0, 1), (1, 2), (2, 0)]),
            (4, 3),
        ),
    ],
)
def test_a_plan_that_needs_other_cables_is_refused(
    ring_plan: RingPlan, file: ClusterFile, tokens: tuple[object, ...]
) -> None:
    with refused(FabricError, *tokens):
        place(ring_plan(4), file)


def test_one_of_two_cables_that_is_missing_is_an_error() -> None:
    twice = plan_on(make_file(2, [(0, 1), (0, 1)]))
    with refused(FabricError, 2, "h0", "h1", 1):
        place(twice, make_file(2, [(0, 1)]))


def test_a_simplex_plan_is_refused(ring_plan: RingPlan) -> None:
    with refused(FabricError, "simplex", "cable"):
        place(ring_plan(4, ports="simplex"), make_file(4, RING))


def test_servers_that_no_cable_joins_are_named() -> None:
    with refused(FabricError, "cables", "h2", "h3", "h0"):
        network_of(make_file(4, [(0, 1), (2, 3)]))


def test_a_job_may_have_the_servers_that_cables_join_with_the_first() -> None:
    file = make_file(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert connected_part(file, [0, 1, 3, 4]) == [0, 1]
    assert connected_part(file, [3, 2, 0, 1]) == [0, 1, 2, 3]
    assert connected_part(file, [0]) == [0]


def test_a_switch_joins_the_servers_of_a_job_that_have_ports_on_it() -> None:
    file = make_file(4, [(0, 1)])
    servers = list(file.servers)
    for socket, server in enumerate((1, 3), start=1):
        port = servers[server].ports[0]
        dark = replace(port, address=f"10.9.9.{socket}/24", switch=f"ocs:{socket}")
        servers[server] = replace(servers[server], ports=(dark, *servers[server].ports[1:]))
    switch = SwitchEntry("ocs", "memory", "-", sockets=("1", "2"))
    file = replace(file, servers=tuple(servers), switches=(switch,)).validate()
    assert connected_part(file, [0, 1, 2, 3]) == [0, 1, 3]
    assert connected_part(file, [0, 2, 3]) == [0]


def test_unequal_accelerators_are_an_error() -> None:
    file = make_file(2, [(0, 1)])
    uneven = replace(file, servers=(file.servers[0], replace(file.servers[1], accelerators=4)))
    with refused(FabricError, "accelerators", "h0", 1, "h1", 4):
        cluster_of(uneven)
