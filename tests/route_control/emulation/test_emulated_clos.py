"""Emulated switches: routes after cuts, names and records, jobs that share them. Needs root."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.emulated_networks import GBPS, emulated
from support.fabric.netns_fixtures import require_namespaces
from support.refusals import refused

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.route_control.emulation.clos import EmulatedClos
from torch_topoopt.route_control.emulation.job import JobOnClos
from torch_topoopt.route_control.network_shapes import fat_tree_file, leaf_spine_file
from torch_topoopt.route_control.probing.kernel_paths import kernel_paths
from torch_topoopt.route_control.probing.probed_flow import ProbedFlow
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def clos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedClos]:
    with emulated(fat_tree_file(4, 1e8, 1), tmp_path_factory.mktemp("state")) as built:
        yield built


def ring(servers: int, ports: str = "simplex", degree: int = 1) -> Plan:
    cluster = Cluster(servers, degree, GBPS, ports=ports)  # type: ignore[arg-type]
    demand = Demand((GroupDemand(tuple(range(servers)), 1 << 20),), ())
    return Plan.of_network(cluster, find_network(cluster, demand), demand, model="none")


def check_paths(clos: EmulatedClos, dead: set[frozenset[str]]) -> None:
    """Every host reaches every other over shortest live paths, whatever its port."""
    file = clos.network
    network = file.network(dead)
    flows = [
        ProbedFlow(a.name, b.name, port, 20000)
        for a in file.hosts
        for b in file.hosts
        if a != b
        for port in range(61000, 61008)
    ]
    for flow, path in zip(flows, kernel_paths(clos.names, flows), strict=True):
        assert path is not None, flow
        assert file.path_numbers(path) in network.paths(
            file.tor_of[flow.source], file.tor_of[flow.target]
        )


def test_after_cuts_all_paths_are_alive_and_afterwards_as_before(clos: EmulatedClos) -> None:
    check_paths(clos, set())
    before = dict(clos._routes)
    one = [("tor0", "aggregation0"), ("aggregation7", "core3")]
    assert clos.cut(one) > 0
    check_paths(clos, set(map(frozenset, one)))
    more = clos.cables_of("core0")
    clos.cut(more)
    check_paths(clos, set(map(frozenset, [*one, *more])))
    assert clos.restore([*one, *more]) > 0
    check_paths(clos, set())
    assert clos._routes == before


def test_a_tor_that_is_cut_off_is_reached_by_nobody_until_it_is_back(clos: EmulatedClos) -> None:
    clos.cut(clos.cables_of("tor7"))
    flows = [ProbedFlow("h0", "h7", 61000, 20000), ProbedFlow("h0", "h6", 61000, 20000)]
    found = kernel_paths(clos.names, flows)
    assert found[0] is None
    assert found[1] is not None
    clos.restore(clos.cables_of("tor7"))
    check_paths(clos, set())


def test_a_cable_that_there_is_not_cannot_be_cut(clos: EmulatedClos) -> None:
    with refused(FabricError, "core0", "tor0"):
        clos.cut([("tor0", "core0")])


def test_jobs_share_a_network_each_on_its_own_hosts(clos: EmulatedClos) -> None:
    for number, hosts in enumerate((["h0", "h3", "h5"], ["h5", "h1"])):
        job = JobOnClos(clos, hosts, tcp_port=20000 + number)
        wiring = job.connect(ring(len(hosts)))
        addresses = {port.server: port.address for port in wiring.ports}
        assert addresses == {i: clos.names.host_address(host) for i, host in enumerate(hosts)}


def test_jobs_that_cannot_be_wired_are_refused_by_name(clos: EmulatedClos) -> None:
    with refused(FabricError, "h99", "host"):
        JobOnClos(clos, ["h0", "h99"])
    with refused(FabricError, "twice"):
        JobOnClos(clos, ["h0", "h0"])
    job = JobOnClos(clos, ["h0", "h1", "h2"])
    with refused(FabricError, "servers", 4, 3):
        job.connect(ring(4))
    with refused(FabricError, "ports", "duplex"):
        job.connect(ring(3, "duplex", 2))


def test_nothing_is_left_of_a_network_that_is_closed(tmp_path: Path) -> None:
    with emulated(leaf_spine_file(2, 1, 1, 1e8), tmp_path) as clos:
        name = clos.names.layout.name
        assert len(netns_kernel.of_fabric(name)) == 3 + 2 + 1
        assert netns_state.describe(name)[0] == netns_state.IN_USE
        with refused(FabricError, "built"):
            clos.build()
    assert netns_kernel.of_fabric(name) == []
    assert not (tmp_path / "topoopt" / "fabrics" / name).exists()


def test_networks_that_cannot_be_emulated_are_refused_by_name() -> None:
    require_namespaces()
    file = leaf_spine_file(2, 1, 1, 1e8)
    own = replace(file.hosts[1], addresses=("10.0.0.1",))
    same = replace(file.hosts[0], name="leaf1")
    for network, tokens in (
        (replace(file, hosts=(file.hosts[0], own)), ("hosts[1].addresses", "h1")),
        (replace(file, hosts=(same,)), ("leaf1", "switch")),
        (replace(file, hosts=()), ("hosts", 0)),
        (leaf_spine_file(2, 1, 1, 4e10), ("bandwidth", 40)),
    ):
        with refused(FabricError, *tokens):
            EmulatedClos("never", network, GBPS)
