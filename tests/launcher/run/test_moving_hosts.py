"""`topoopt run --cluster --relay kernel`: circuits of real switches move during collectives.

The hosts are namespaces, each with its own launcher. A test server speaks the protocol of the
device, and its circuits steer the light between the ports of the hosts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from plain_hosts import Hosts, make_hosts
from support.fabric.certificates import write_certificate
from support.fabric.mirrored_switches import LightPath, MirroredOcs, MirroredPolatis
from support.fabric.polatis_restconf_server import PolatisRestconfServer
from support.fabric.sonic_ocs_server import OcsServer
from support.plain_namespaces import End, Namespaces, ip, run, up, wait_for_carrier
from test_cluster_run import run_everywhere

from torch_topoopt.fabric.cluster_file.entries import PortEntry, SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.launcher import Launcher
    from support.plans import RingPlan

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

HOSTS, PORTS, SETTLE_S = 4, 2, 0.02
CALLS = 2
SCRIPT = f"""
import pathlib
import torch
import torch.distributed as dist

def calls(backend):
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    found = []
    for _ in range({CALLS}):
        total = torch.arange(30_000) * (rank + 1)
        dist.all_reduce(total)
        own = torch.arange(10_000) + 10_000 * rank
        gathered = torch.empty(world * 10_000, dtype=own.dtype)
        dist.all_gather_into_tensor(gathered, own)
        sent = torch.arange(world * 5_000) * world + rank
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        found += [total, gathered, received]
    dist.destroy_process_group()
    return found

for ours, theirs in zip(calls("topoopt"), calls("gloo"), strict=True):
    assert torch.equal(ours, theirs)
pathlib.Path("equal").touch()
"""


@dataclass
class Glass:
    """Hosts whose ports are sockets of one device: port P of host H is socket PORTS * H + P + 1."""

    hosts: Hosts
    device: MirroredOcs | MirroredPolatis
    file: ClusterFile

    def rules(self) -> list[str]:
        """What the hosts have of routing tables, rules and neighbours, apart from their own."""
        found = []
        for name in self.hosts.names:
            found += ip(f"-n {name} rule").splitlines()[3:]
            found += ip(f"-n {name} route show table all proto 84").splitlines()
            found += ip(f"-n {name} neigh show nud permanent").splitlines()
            found += ip(f"-n {name} addr show dev lo to 198.19.0.0/16").splitlines()
        return found


def plug(hosts: Hosts, glass: str) -> None:
    """All ports of all hosts are in one subnet."""
    for host, name in enumerate(hosts.names[:HOSTS]):
        for port in range(PORTS):
            near, far = f"nic{port}", f"socket{PORTS * host + port + 1}"
            hosts.namespaces.cable(End(name, near), End(glass, far))
            up(name, near, address_of(hosts, host, port))
            up(glass, far)
            run(*f"ip netns exec {glass} tc qdisc add dev {far} clsact".split())
    wait_for_carrier((name, f"nic{p}") for name in hosts.names[:HOSTS] for p in range(PORTS))


def address_of(hosts: Hosts, host: int, port: int) -> str:
    return f"{hosts.namespaces.network}.1.{10 * (host + 1) + port}/24"


def cluster_of(hosts: Hosts, kind: str, address: str, options: dict[str, object]) -> ClusterFile:
    plain = hosts.cluster()
    servers = tuple(
        replace(
            server,
            ports=tuple(
                PortEntry(
                    f"p{port}",
                    address_of(hosts, host, port),
                    0.1,
                    switch=f"ocs0:{host * PORTS + port + 1}",
                )
                for port in range(PORTS)
            ),
        )
        for host, server in enumerate(plain.servers)
    )
    switch = SwitchEntry(
        *("ocs0", kind, address),
        user="admin",
        password=PasswordSource(env="SWITCH_PASSWORD"),
        sockets=tuple(str(n + 1) for n in range(HOSTS * PORTS)),
        options=options,
    )
    return replace(plain, servers=servers, switches=(switch,)).validate()


@pytest.fixture
def glass(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Glass]:
    monkeypatch.setenv("SWITCH_PASSWORD", OcsServer.password)
    monkeypatch.setenv("TOPOOPT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "manage")
    with Namespaces("tc") as namespaces:
        hosts = make_hosts(HOSTS, [], Hosts(namespaces))
        devices = f"{namespaces.network}.0.254"
        ip(f"addr add {devices}/24 dev {hosts.bridge}")
        dark = namespaces.add()
        namespaces.names.remove(dark)
        plug(hosts, dark)
        certificate = write_certificate(tmp_path / "device.pem", devices)
        options: dict[str, object] = {"ca_file": str(certificate)}
        size, path = HOSTS * PORTS, LightPath(dark)
        device: MirroredOcs | MirroredPolatis
        server: OcsServer | PolatisRestconfServer
        if request.param == "sonic-ocs":
            device = MirroredOcs(size=size, settle_s=SETTLE_S, light_path=path)
            server = OcsServer(device, certificate, devices)
            options["poll_s"] = 0.01
        else:
            users = {"admin": OcsServer.password}
            device = MirroredPolatis(size=size, settle_s=SETTLE_S, light_path=path, users=users)
            server = PolatisRestconfServer(device, certificate, devices)
        with server:
            file = cluster_of(hosts, request.param, server.address, options)
            yield Glass(hosts, device, file)


MOVES = ("--relay", "kernel", "--collectives", "reconfigure", "--alltoall", "reconfigure")


@pytest.mark.parametrize("glass", ["sonic-ocs", "polatis-restconf"], indirect=True)
def test_collectives_on_several_hosts_move_circuits_and_equal_those_of_gloo(
    launcher: Launcher, glass: Glass, ring_plan: RingPlan
) -> None:
    ring_plan(HOSTS).save(launcher.folder / "plan.json")
    options = ("--plan", "../plan.json", *MOVES, "--json")
    ended = run_everywhere(launcher, glass.hosts, glass.file, *options, script=SCRIPT)
    for done in ended:
        assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(ended[0].stdout)
    assert summary["alltoall"]["moved"] == CALLS
    assert summary["collectives"]["stopped"] == 0
    assert summary["collectives"]["moved"] > 0
    for number in range(HOSTS):
        assert (launcher.folder / f"server{number}" / "equal").exists()
    assert glass.rules() == []
