"""HostSetup: routes, neighbours and relays that follow the plan, hop by hop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import cluster_of
from support.refusals import refused
from support.small_op_graphs import one_all_reduce

from torch_topoopt.fabric.cluster.switched_plan import place_on_switches
from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
from torch_topoopt.fabric.hosts.host_setup import FORWARD_MAC, HostSetup, host_setup
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Cluster, Link, Plan, Route
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.options import PlanningOptions

if TYPE_CHECKING:
    from support.plans import RingPlan

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile


def _setups(plan: Plan, file: ClusterFile) -> dict[str, HostSetup]:
    return {server.name: host_setup(plan, file, server.name) for server in file.servers}


def _travel(
    setups: dict[str, HostSetup], file: ClusterFile, source: str, destination: str
) -> tuple[list[str], str]:
    """Carries a frame from port to port as the hosts would; the hosts it visits, and its MAC."""
    far = {a: b for cable in file.cables for a, b in (cable, cable[::-1])}
    owner = {port.ip: end for end, (_, port) in file.ports.items()}
    route = next(r for r in setups[source].routes if r.destination == destination)
    here, mac, visited = source, route.mac, [source]
    interface = route.interface
    for _ in range(len(setups)):
        port = next(p for p in setups[here].ports if p.interface == interface)
        here, _, entered = far[f"{here}:{port.name}"].partition(":")
        visited.append(here)
        if owner[destination].partition(":")[0] == here:
            return visited, str(mac)
        assert mac == FORWARD_MAC, f"{here} would not pass {mac} on"
        second = next(p.second for p in setups[here].ports if p.name == entered)
        rules = [
            relay
            for relay in setups[here].relays
            if relay.entry == second
            and relay.destination == destination
            and relay.source in (None, route.source)
        ]
        assert len(rules) == 1, f"{len(rules)} rules of {here} take {source} to {destination}"
        interface, mac = rules[0].interface, rules[0].mac or mac
    raise AssertionError(f"{source} to {destination} has a loop: {visited}")


@pytest.mark.parametrize("servers", [2, 3, 5, 8])
def test_every_address_is_reached_by_the_planned_relays(ring_plan: RingPlan, servers: int) -> None:
    _check_every_way(ring_plan(servers))


def test_twelve_servers_with_four_ports_as_the_planner_wires_them() -> None:
    cluster = Cluster(12, 4, 0.025)
    _check_every_way(
        planner.plan(one_all_reduce(10**6), cluster, PlanningOptions(rounds=1, evaluations=10))
    )


def _check_every_way(plan: Plan) -> None:
    file = cluster_of(plan)
    setups = _setups(plan, file)
    macs = {port.ip: (end, port.mac) for end, (_, port) in file.ports.items()}
    for (a, b), routes in plan.network.routes_by_pair().items():
        for port in file.servers[b].ports:
            visited, mac = _travel(setups, file, f"h{a}", port.ip)
            assert tuple(int(name[1:]) for name in visited) in {r.servers for r in routes}
            arrivals = {m for end, m in macs.values() if end.startswith(f"h{b}:")}
            assert mac in arrivals, "the last hop carries the receiver's own MAC, as RDMA needs"


def test_weights_spread_the_addresses_of_a_server_over_its_routes(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    both = [Route((a, (a + step) % 4, (a + 2) % 4), 0.5) for a in range(4) for step in (1, 3)]
    plan = replace(plan, network=replace(plan.network, routes=tuple(both))).validate()
    file = cluster_of(plan)
    setups = _setups(plan, file)
    taken = {_travel(setups, file, "h0", port.ip)[0][1] for port in file.servers[2].ports}
    assert taken == {"h1", "h3"}


def test_sources_that_part_at_a_relay_are_distinguished(ring_plan: RingPlan) -> None:
    """0 and 1 reach 4 through 2, 0 by 3 and 1 directly: one destination, two ways out of 2."""
    cables = [(0, 0, 1, 0), (1, 1, 2, 0), (2, 1, 3, 0), (2, 2, 4, 0), (3, 1, 4, 1)]
    links = [Link(*cable) for cable in cables]
    links += [link.reverse for link in links]
    paths = [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4), (1, 2, 3), (1, 2, 4)]
    routes = [Route(way, 1.0) for path in paths for way in (path, path[::-1])]
    base = ring_plan(5)
    group = replace(base.network.groups[0], rings=base.network.groups[0].rings[:1])
    group = replace(group, rings=(replace(group.rings[0], share=1.0),))
    network = replace(base.network, links=tuple(links), groups=(group,), routes=tuple(routes))
    cluster = replace(base.cluster, degree=3)
    prediction = replace(base.prediction, link_bytes=(0,) * len(links))
    plan = replace(
        base, mode="fixed", cluster=cluster, network=network, prediction=prediction
    ).validate()
    file = cluster_of(plan)
    setups = _setups(plan, file)
    address = file.servers[4].ports[0].ip
    assert _travel(setups, file, "h0", address)[0] == ["h0", "h1", "h2", "h3", "h4"]
    assert _travel(setups, file, "h1", address)[0] == ["h1", "h2", "h4"]
    assert any(relay.source for relay in setups["h2"].relays)


def test_without_macs_a_cable_uses_arp_and_a_relay_keeps_the_address(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    file = _changed_ports(cluster_of(plan), mac=None)
    setup = host_setup(plan, file, "h0")
    neighbour = file.ports["h1:p1"][1].ip  # at the other end of h0:p0
    assert next(r.mac for r in setup.routes if r.destination == neighbour) is None
    assert all(relay.mac is None for relay in setup.relays)


def test_on_a_switch_it_takes_the_ports_of_the_circuits_that_are_made(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    file = _on_switches(cluster_of(plan))
    made = place_on_switches(plan, file).file
    setups = _setups(plan, file)
    for (a, b), routes in plan.network.routes_by_pair().items():
        for port in made.servers[b].ports:
            visited, _ = _travel(setups, made, f"h{a}", port.ip)
            assert tuple(int(name[1:]) for name in visited) in {r.servers for r in routes}


def _on_switches(file: ClusterFile) -> ClusterFile:
    """The same ports, the first of each server on one switch and the second on another."""
    servers = tuple(
        replace(
            server,
            ports=tuple(
                replace(port, switch=f"ocs{k}:{i + 1}", address=f"10.78.{k}.{i + 1}/24")
                for k, port in enumerate(server.ports)
            ),
        )
        for i, server in enumerate(file.servers)
    )
    sockets = tuple(str(i + 1) for i in range(len(servers)))
    switches = tuple(SwitchEntry(f"ocs{k}", "memory", "nowhere", sockets=sockets) for k in (0, 1))
    return replace(file, servers=servers, cables=(), switches=switches).validate()


def _changed_ports(file: ClusterFile, **changes: object) -> ClusterFile:
    servers = tuple(
        replace(s, ports=tuple(replace(p, **changes) for p in s.ports)) for s in file.servers
    )
    return replace(file, servers=servers)


def test_a_port_without_an_interface_is_named(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    file = _changed_ports(cluster_of(plan), interface=None)
    with refused(FabricError, "h2:p0", "interface"):
        host_setup(plan, file, "h2")


def test_two_servers_on_one_machine_are_refused(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    file = cluster_of(plan)
    servers = tuple(replace(s, host="box") if i < 2 else s for i, s in enumerate(file.servers))
    with refused(FabricError, "h0", "h1", "box"):
        host_setup(plan, replace(file, servers=servers), "h0")
