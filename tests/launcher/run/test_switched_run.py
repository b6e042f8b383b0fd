"""`topoopt run --cluster` with ports on switches: the circuits of the plan are made first.

The hosts are namespaces; a bridge for each subnet stands for the glass, and two devices that speak
SONiC-OCS over TLS are asked for circuits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from plain_hosts import Hosts, make_hosts
from support.plain_namespaces import Namespaces, ip, wait_for_carrier
from test_cluster_run import check_trained, error_of, run_everywhere

from torch_topoopt.fabric.cluster.switched_plan import place_on_switches
from torch_topoopt.fabric.cluster.switches import Switches
from torch_topoopt.fabric.cluster_file.entries import PortEntry, SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.launcher import Launcher
    from support.plans import RingPlan

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

from support.fabric.certificates import write_certificate
from support.fabric.sonic_ocs_device import OcsDevice
from support.fabric.sonic_ocs_server import OcsServer

PLANES = 2


@dataclass
class Lab:
    """Hosts with a port on each of two switches; host k has socket k + 1."""

    hosts: Hosts
    servers: list[OcsServer] = field(default_factory=list)
    file: ClusterFile | None = None


@pytest.fixture(params=[4])
def lab(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    with Namespaces() as namespaces:
        lab = Lab(make_hosts(request.param, [], Hosts(namespaces)))
        network = namespaces.network
        devices = f"{network}.0.254"
        ip(f"addr add {devices}/24 dev {lab.hosts.bridge}")
        for plane in range(PLANES):
            _join(namespaces, plane)
        certificate = write_certificate(tmp_path / "device.pem", devices)
        lab.servers = [OcsServer(OcsDevice(), certificate, devices) for _ in range(PLANES)]
        lab.file = _cluster_file(lab, network, certificate)
        monkeypatch.setenv("OCS_PASSWORD", OcsServer.password)
        with lab.servers[0], lab.servers[1]:
            yield lab


def _join(namespaces: Namespaces, plane: int) -> None:
    """Gives every host an interface `nic<plane>` in one subnet."""
    bridge = namespaces.bridge()
    for host, name in enumerate(namespaces.names):
        address = f"{namespaces.network}.{plane + 1}.{host + 1}/24"
        namespaces.plug(bridge, name, f"nic{plane}", address)
    wait_for_carrier((name, f"nic{plane}") for name in namespaces.names)


def _cluster_file(lab: Lab, network: str, certificate: Path) -> ClusterFile:
    plain = lab.hosts.cluster()
    servers = tuple(
        replace(
            server,
            ports=tuple(
                PortEntry(
                    f"p{plane}",
                    f"{network}.{plane + 1}.{host + 1}/24",
                    1.0,
                    switch=f"ocs{plane}:{host + 1}",
                )
                for plane in range(PLANES)
            ),
        )
        for host, server in enumerate(plain.servers)
    )
    switches = tuple(
        SwitchEntry(
            f"ocs{plane}",
            "sonic-ocs",
            server.address,
            user="admin",
            password=PasswordSource(env="OCS_PASSWORD"),
            sockets=tuple(str(host + 1) for host in range(len(servers))),
            options={"ca_file": str(certificate), "poll_s": 0.02},
        )
        for plane, server in enumerate(lab.servers)
    )
    return replace(plain, servers=servers, switches=switches).validate()


def test_the_switches_are_set_and_the_job_trains(launcher: Launcher, lab: Lab) -> None:
    assert lab.file is not None
    theirs = Circuit("7A", "8B")
    lab.servers[0].device.bulk_update([], [("7A-8B", *theirs.ports)])
    ended = run_everywhere(launcher, lab.hosts, lab.file)
    check_trained(launcher.folder, lab.hosts, ended)
    run = launcher.folder / "server0" / "run"
    plan = Plan.load(run / "plan.json")
    assert plan.mode == "best"
    assert len(plan.network.links) == 8
    with Switches(lab.file) as switches:
        left = switches.preview(place_on_switches(plan, lab.file).cables)
    assert not any(left.values()), "just the circuits of the plan are there"
    assert theirs in lab.servers[0].device.circuits()
    assert sorted(p.name for p in (run / "switches-before").iterdir()) == ["ocs0.json", "ocs1.json"]
    assert not (launcher.folder / "server1" / "run" / "switches-before").exists()
    for done in ended:
        assert OcsServer.password not in done.stdout + done.stderr


@pytest.mark.parametrize("lab", [2], indirect=True)
def test_a_switch_that_fails_ends_the_run_on_all_hosts_alike(
    launcher: Launcher, lab: Lab, ring_plan: RingPlan
) -> None:
    assert lab.file is not None
    ring_plan(2).save(launcher.folder / "plan.json")
    device = lab.servers[0].device
    device.fails_after = 1
    ended = run_everywhere(launcher, lab.hosts, lab.file, "--plan", "../plan.json")
    assert {done.returncode for done in ended} == {2}, [done.stderr for done in ended]
    assert len({error_of(done) for done in ended}) == 1
    assert "ocs0: bulk-update failed for 2A-1B" in error_of(ended[0])
    # the first of both circuits was made, and the device refuses to delete it as well
    assert "going back failed too" in error_of(ended[0])
    assert "all circuits from before are in run/switches-before" in error_of(ended[0])
