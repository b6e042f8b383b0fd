"""The circuits that make a Plan's cables, on one switch and on many."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from support.fabric.switched_clusters import switched_file
from support.refusals import refused

from torch_topoopt.fabric.cluster.static_plan import place
from torch_topoopt.fabric.cluster.switched_plan import cluster_on_switches, place_on_switches
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Cluster, Demand, Link, Plan
from torch_topoopt.topology.finder.fixed_network import Cable, network_of_cables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.plans import RingPlan

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile


def plan_of(servers: int, pairs: Sequence[tuple[int, int]], degree: int) -> Plan:
    """A plan with just these cables."""
    used = [0] * servers
    links = []
    for a, b in pairs:
        links += [Link(a, used[a], b, used[b]), Link(b, used[b], a, used[a])]
        used[a] += 1
        used[b] += 1
    cables = [Cable(pair, (f"{i}a", f"{i}b"), 10.0) for i, pair in enumerate(pairs)]
    network = network_of_cables(servers, tuple(links), cables)
    cluster = Cluster(servers, degree, 10.0)
    return Plan.of_network(cluster, network, Demand((), ()), model="", mode="fixed")


def check(plan: Plan, file: ClusterFile) -> None:
    """Each cable of the plan is one between two sockets of one switch, and no socket is in two."""
    placed = place_on_switches(plan, file)
    used = [(name, s) for name, pairs in placed.cables.items() for pair in pairs for s in pair]
    assert len(used) == len(set(used)) == len(plan.network.links)
    owners = {port.switch: server for server, port in file.ports.values()}
    made = sorted(
        tuple(sorted(owners[f"{name}:{socket}"] for socket in pair))
        for name, pairs in placed.cables.items()
        for pair in pairs
    )
    assert made == sorted((k.source, k.target) for k in plan.network.links if k.source < k.target)
    assert len(place(plan, placed.file)) == len(plan.network.links)
    assert place_on_switches(plan, file) == placed


def test_a_ring_on_one_switch(ring_plan: RingPlan) -> None:
    file = switched_file(4, [2])
    placed = place_on_switches(ring_plan(4), file)
    assert placed.cables == {"ocs0": (("1", "3"), ("2", "7"), ("4", "5"), ("6", "8"))}
    assert placed.file.cables[0] == ("h0:p0", "h1:p0")
    check(ring_plan(4), file)


@pytest.mark.parametrize("servers", [4, 6, 8])
def test_a_ring_on_two_switches_alternates_between_them(ring_plan: RingPlan, servers: int) -> None:
    check(ring_plan(servers), switched_file(servers, [1, 1]))


def test_an_odd_ring_needs_a_third_switch(ring_plan: RingPlan) -> None:
    with refused(FabricError, 5, "cables", "switches"):
        place_on_switches(ring_plan(5), switched_file(5, [1, 1]))
    check(ring_plan(5), switched_file(5, [1, 1, 1]))


def test_a_complete_graph_is_coloured_with_as_many_switches_as_ports() -> None:
    """K8 has 28 cables and 7 perfect matchings: every port of every switch is needed."""
    pairs = list(combinations(range(8), 2))
    check(plan_of(8, pairs, 7), switched_file(8, [1] * 7))


def test_sixty_four_servers_with_four_ports() -> None:
    """A union of rings: every switch but one is full, and greedy choices do not fit."""
    strides = (1, 11)
    pairs = sorted({tuple(sorted((s, (s + p) % 64))) for p in strides for s in range(64)})
    check(plan_of(64, pairs, 4), switched_file(64, [1] * 4))


def test_two_cables_between_the_same_servers() -> None:
    plan = plan_of(2, [(0, 1), (0, 1)], 2)
    check(plan, switched_file(2, [1, 1]))
    check(plan, switched_file(2, [2]))


def test_cables_that_are_plugged_are_used_first(ring_plan: RingPlan) -> None:
    file = switched_file(4, [2])
    plug = {"h0:p0": "10.9.0.1/30", "h1:p0": "10.9.0.2/30"}
    servers = tuple(
        replace(
            server,
            ports=tuple(
                replace(port, switch=None, address=plug[end])
                if (end := f"{server.name}:{port.name}") in plug
                else port
                for port in server.ports
            ),
        )
        for server in file.servers
    )
    file = replace(file, servers=servers, cables=(("h0:p0", "h1:p0"),)).validate()
    placed = place_on_switches(ring_plan(4), file)
    assert placed.cables == {"ocs0": (("2", "7"), ("4", "5"), ("6", "8"))}
    assert placed.file.cables[0] == ("h0:p0", "h1:p0")


def test_what_cannot_be_is_said(ring_plan: RingPlan) -> None:
    with refused(FabricError, 3, 4):
        place_on_switches(ring_plan(3), switched_file(4, [2]))
    with refused(FabricError, "simplex"):
        place_on_switches(ring_plan(4, ports="simplex"), switched_file(4, [2]))
    with refused(FabricError, 2, "h0", 1):
        place_on_switches(ring_plan(4), switched_file(4, [1]))
    file = switched_file(4, [2])
    lone = replace(file.servers[2], ports=())
    with refused(FabricError, "h1", "h2"):
        place_on_switches(
            ring_plan(4), replace(file, servers=(*file.servers[:2], lone, file.servers[3]))
        )


def test_ports_are_joined_within_their_subnet(ring_plan: RingPlan) -> None:
    """One switch, every server with a port in each of two subnets: as good as two switches."""
    file = switched_file(4, [2])
    servers = tuple(
        replace(
            server,
            ports=tuple(
                replace(port, address=f"10.7.{k}.{number + 1}/24")
                for k, port in enumerate(server.ports)
            ),
        )
        for number, server in enumerate(file.servers)
    )
    check(ring_plan(4), replace(file, servers=servers).validate())
    strange = replace(servers[1].ports[0], address="192.168.7.1/24")
    server = replace(servers[1], ports=(strange, servers[1].ports[1]))
    with refused(FabricError, "switches", "ends"):
        place_on_switches(ring_plan(4), replace(file, servers=(servers[0], server, *servers[2:])))


@pytest.mark.parametrize(
    ("servers", "ports", "degree"),
    [(2, [1, 1], 1), (3, [1, 1], 2), (6, [1, 1, 1], 2), (6, [2, 3], 4), (4, [5], 2)],
)
def test_the_cluster_has_as_many_ports_as_can_be_planned(
    servers: int, ports: list[int], degree: int
) -> None:
    cluster = cluster_on_switches(switched_file(servers, ports))
    assert (cluster.servers, cluster.degree) == (servers, degree)


def test_a_server_without_enough_ports_is_named() -> None:
    file = switched_file(4, [2])
    lone = replace(file.servers[2], ports=file.servers[2].ports[:1])
    with refused(FabricError, "h2", 1, 2):
        cluster_on_switches(
            replace(file, servers=(*file.servers[:2], lone, file.servers[3])).validate()
        )
    more = replace(file.servers[1], accelerators=8)
    with refused(FabricError, "h0", 1, "h1", 8):
        cluster_on_switches(replace(file, servers=(file.servers[0], more, *file.servers[2:])))


def test_circuits_that_are_there_stay(ring_plan: RingPlan) -> None:
    """Two cables were made over other ports than the first choice, one the other way round."""
    file = switched_file(4, [3])
    present = [("h1:p2", "h0:p1"), ("h2:p0", "h3:p2"), ("h0:p0", "h2:p2")]
    placed = place_on_switches(ring_plan(4), file, present)
    assert {("h0:p1", "h1:p2"), ("h2:p0", "h3:p2")} <= set(placed.file.cables)
    assert ("h0:p0", "h2:p2") not in placed.file.cables
    assert len({end for ends in placed.file.cables for end in ends}) == 8
    again = place_on_switches(ring_plan(4), file, placed.file.cables)
    assert set(again.file.cables) == set(placed.file.cables)


def test_circuits_go_where_the_rest_would_not_fit_beside_them(ring_plan: RingPlan) -> None:
    """On two switches an even ring fits in two ways only; one cable of each way fits in none."""
    present = [("h0:p0", "h1:p0"), ("h2:p1", "h3:p1")]
    placed = place_on_switches(ring_plan(4), switched_file(4, [1, 1]), present)
    assert len(placed.cables["ocs0"]) == len(placed.cables["ocs1"]) == 2
