"""From probes that were answered to links, rings and routes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from support.discovered_servers import answer, make_servers
from support.refusals import named

from torch_topoopt.discovery.choice import describe_choice
from torch_topoopt.discovery.interfaces import Interface
from torch_topoopt.discovery.network import plan_network
from torch_topoopt.discovery.network_choice import NetworkChoice
from torch_topoopt.discovery.reach import (
    Server,
    components,
    rounds,
    slow_interfaces,
    unreachable,
)
from torch_topoopt.links.rank_layout import rings_of


def plan_of(servers: list[Server]) -> Any:
    return plan_network(servers, answer(servers))


def ring_cables(count: int) -> list[tuple[int, int, float]]:
    return [(s, (s + 1) % count, 100.0) for s in range(count)]


def test_a_ring_of_cables_is_the_ring() -> None:
    plan, wiring = plan_of(make_servers(5, ring_cables(5)))
    assert [ring.servers for ring in plan.network.groups[0].rings] == [
        (0, 1, 2, 3, 4),
        (0, 4, 3, 2, 1),
    ]
    assert {port.speed_gbps for port in wiring.ports} == {100.0}
    assert plan.cluster.link_gbps == 100.0
    opposite = [route.servers for route in plan.network.routes if route.servers[0] == 0]
    assert opposite == [(0, 1, 2), (0, 4, 3)]


def test_cables_between_all_pairs_carry_disjoint_rings() -> None:
    cables = [(a, b, 10.0) for a, b in combinations(range(5), 2)]
    plan, _ = plan_of(make_servers(5, cables))
    rings = plan.network.groups[0].rings
    hops = [
        hop
        for ring in rings
        for hop in zip(ring.servers, ring.servers[1:] + ring.servers[:1], strict=True)
    ]
    assert len(rings) == 4
    assert sorted(hops) == sorted((a, b) for a in range(5) for b in range(5) if a != b)


def test_one_interface_to_a_switch_carries_one_ring_however_many_it_reaches() -> None:
    plan, _ = plan_of(make_servers(6, [], switch_gbps=25.0))
    assert len(plan.network.groups[0].rings) == 2, "one order, both ways round"
    assert plan.network.routes == (), "every pair has a connection of its own"


def test_two_interfaces_on_one_switch_are_both_used_by_every_pair() -> None:
    servers = [
        Server(
            f"node{host}",
            f"machine{host}",
            (host,),
            tuple(
                Interface(f"nic{nic}", f"10.0.0.{10 * host + nic}", 24, 50.0, False, False)
                for nic in (1, 2)
            ),
            (5001, 5002),
        )
        for host in range(3)
    ]
    plan, wiring = plan_of(servers)
    assert len(plan.network.links) == 2 * 2 * 3
    names = wiring.by_port()
    for link in plan.network.links:
        ends = ((link.source, link.source_port), (link.target, link.target_port))
        assert len({names[end].interface for end in ends}) == 1, "greedy by order: nic1 to nic1"


def test_the_ring_prefers_fast_cables() -> None:
    order = [0, 2, 4, 1, 3]
    fast = [(a, b, 100.0) for a, b in zip(order, [*order[1:], 0], strict=True)]
    slower = [(a, b, 40.0) for a, b in ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))]
    plan, _ = plan_of(make_servers(5, slower + fast))
    rings = plan.network.groups[0].rings
    assert rings[0].servers in ((0, 2, 4, 1, 3), (0, 3, 1, 4, 2))
    assert len(rings) == 4, "the slower cables carry rings of their own"


def test_rings_of_unequal_links_get_unequal_shares() -> None:
    order = [0, 2, 4, 1, 3]
    fast = [(a, b, 75.0) for a, b in zip(order, [*order[1:], 0], strict=True)]
    slow = [(a, b, 25.0) for a, b in ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))]
    plan, wiring = plan_of(make_servers(5, slow + fast))
    rings = rings_of(plan, list(range(5)), wiring.link_rates(plan))
    assert [ring.share for ring in rings] == pytest.approx([0.375, 0.375, 0.125, 0.125])


@pytest.mark.parametrize(
    ("count", "cables", "hops"),
    [
        (3, [(0, 1), (1, 2)], 4),
        (4, [(0, 1), (0, 2), (0, 3)], 6),
        (6, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3)], 8),
    ],
)
def test_without_a_cycle_of_cables_the_ring_is_a_short_walk_with_relays(
    count: int, cables: list[tuple[int, int]], hops: int
) -> None:
    servers = make_servers(count, [(a, b, 10.0) for a, b in cables])
    plan, wiring = plan_of(servers)
    ring = plan.network.groups[0].rings[0].servers
    routes = plan.network.routes_by_pair()
    steps = [routes[hop][0].servers for hop in zip(ring, ring[1:] + ring[:1], strict=True)]
    assert sum(len(step) - 1 for step in steps) == hops
    assert "ring through relays node" in describe_choice(servers, NetworkChoice(plan, wiring))


def test_ends_of_a_cable_in_different_subnets_are_named() -> None:
    servers = make_servers(3, [], switch_gbps=10.0)
    for number, address in ((0, "1.1.1.1"), (1, "2.2.2.2")):
        end = Interface("p0", address, 24, 100.0, False, False)
        servers[number] = with_interface(servers[number], end)
    bridge = Interface("docker0", "172.17.0.1", 16, None, False, False)
    servers = [with_interface(server, bridge) for server in servers]
    plan, wiring = plan_of(servers)
    line = describe_choice(servers, NetworkChoice(plan, wiring))
    assert "p0 of node0 (1.1.1.1/24), p0 of node1 (2.2.2.2/24)" in line
    assert "docker0" not in line
    servers[1] = replace(servers[1], interfaces=servers[1].interfaces[:1], tcp_ports=(5000,))
    plan, wiring = plan_of(servers)
    assert "1.1.1.1" not in describe_choice(servers, NetworkChoice(plan, wiring)), (
        "it may be of another network"
    )


def with_interface(server: Server, more: Interface) -> Server:
    interfaces = (*server.interfaces, more)
    return replace(
        server, interfaces=interfaces, tcp_ports=tuple(range(5000, 5000 + len(interfaces)))
    )


def test_wireless_is_slow_at_any_claimed_rate() -> None:
    wire = Interface("eth0", "10.0.0.1", 24, None, False, False)
    radio = Interface("wlan0", "10.0.1.1", 24, 1200.0, True, False)
    near = Interface("eth1", "10.0.2.1", 24, 25.0, False, False)
    beside = Interface("eth2", "10.0.3.1", 24, 100.0, False, False)
    server = Server("node", "machine", (0,), (wire, radio, near, beside), (1, 2, 3, 4))
    assert slow_interfaces([server]) == {"10.0.1.1"}, "a quarter of the fastest is not much slower"


def test_addresses_that_every_host_has_are_not_tried() -> None:
    bridge = Interface("docker0", "172.17.0.1", 16, None, False, False)
    servers = [Server(f"node{i}", f"machine{i}", (i,), (bridge,), (5000,)) for i in range(2)]
    assert rounds(servers) == []


def test_hosts_that_are_cut_off_are_named() -> None:
    servers = make_servers(5, [(0, 1, 10.0), (1, 2, 10.0), (3, 4, 10.0)])
    reached = answer(servers)
    parts = components(5, [(probe.source, probe.target) for probe in reached])
    assert parts == [[0, 1, 2], [3, 4]]
    message = unreachable(servers, parts)
    assert named(message, "cut off", "node0")
    assert "host node3 (rank 3; 10.1.3.1 on nic3); host node4 (rank 4; 10.1.3.2 on nic3)" in message
    alone = unreachable(servers[:3], [[0, 1], [2]])
    assert alone.startswith("host node2 (rank 2; 10.1.2.2 on nic2): reached by no other host")


def test_cables_that_are_a_torus_are_recognised() -> None:
    """Rows and columns for the AllReduce along them, and rings that use every cable both ways."""
    place = [(i, j) for i in range(3) for j in range(4)]
    number = {at: (7 * k + 2) % 12 for k, at in enumerate(place)}
    cables = [
        (number[i, j], number[other], 100.0)
        for i, j in place
        for other in ((i, (j + 1) % 4), ((i + 1) % 3, j))
    ]
    servers = make_servers(12, cables)
    plan, _ = plan_network(servers, answer(servers))
    (group,) = plan.network.groups
    assert {frozenset(row) for row in group.grid} == {
        frozenset(number[i, j] for j in range(4)) for i in range(3)
    }
    assert len(group.rings) == 4
    orders = [ring.servers for ring in group.rings]
    used = {step for order in orders for step in pairwise((*order, order[0]))}
    assert used == {(link.source, link.target) for link in plan.network.links}
    slow = [(*cables[0][:2], 10.0), *cables[1:]]
    servers = make_servers(12, slow)
    plan, _ = plan_network(servers, answer(servers))
    assert plan.network.groups[0].grid == ()
