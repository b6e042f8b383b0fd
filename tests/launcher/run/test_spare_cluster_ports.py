"""`topoopt run --cluster` on a switch with free ports: a cable whose port dies moves to them.

The hosts are namespaces with three interfaces each on one bridge, which stands for the glass. A
device that speaks SONiC-OCS over TLS is asked for circuits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plain_hosts import Hosts, make_hosts
from support.fabric.certificates import write_certificate
from support.fabric.sonic_ocs_device import OcsDevice
from support.fabric.sonic_ocs_server import OcsServer
from support.limits import limit_s
from support.plain_namespaces import Namespaces, ip, run, wait_for_carrier
from test_cluster_run import run_everywhere

from torch_topoopt.environment import SPARE_VARIABLE
from torch_topoopt.fabric.cluster_file.entries import PortEntry, SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.links.wiring import Wiring

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from support.launcher import Launcher
    from support.plans import RingPlan

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

HOSTS, PORTS = 3, 3
SCRIPT = f"""
import json
import pathlib
import subprocess
import time

import torch
import torch.distributed as dist

from torch_topoopt.runtime import job

deadline = time.monotonic() + {limit_s(15.0)}
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
wiring = json.loads(pathlib.Path("run/wiring.json").read_text())
dead = min(p["address"] for p in wiring["ports"] if p["server"] == 0)
last = None
for step in range(1_000_000):
    total = torch.arange(5000) * (rank + 1) + step
    dist.all_reduce(total)
    expected = torch.arange(5000) * (world * (world + 1) // 2) + world * step
    assert torch.equal(total, expected)
    if step == 3 and rank == 0:
        interface = "nic" + str(int(dead.split(".")[3]) % 10)
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)
    lost = torch.tensor([len(job.jobs[-1].session.lost_cables()), time.monotonic() > deadline])
    dist.all_reduce(lost, dist.ReduceOp.MAX)
    assert not lost[1], (step, int(lost[0]), last)
    if lost[0] > 0:
        last = step + 5
    elif last is not None and step > last:
        break
pathlib.Path("steps").write_text(str(step))
dist.destroy_process_group()
"""


@dataclass
class Glass(OcsDevice):
    """The spare port of `host`, which is the first, is up once it has a circuit."""

    host: str = ""

    def bulk_update(self, delete, add):  # type: ignore[no-untyped-def]
        with self.lock:
            answer = super().bulk_update(delete, add)
            lit = any(f"{PORTS}A" in circuit.ports for circuit in self.circuits())
            ip(f"-n {self.host} link set nic{PORTS - 1} {'up' if lit else 'down'}")
            return answer


def plug(hosts: Hosts) -> None:
    """Interface P of host H has an address that ends with H P, and answers for no other."""
    namespaces = hosts.namespaces
    bridge = namespaces.bridge()
    for host, name in enumerate(namespaces.names):
        for key, value in (("arp_ignore", 1), ("arp_announce", 2)):
            run("ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv4.conf.all.{key}={value}")
        for port in range(PORTS):
            namespaces.plug(bridge, name, f"nic{port}", address_of(namespaces, host, port))
    ends = [(name, f"nic{port}") for name in namespaces.names for port in range(PORTS)]
    wait_for_carrier(ends)


def address_of(namespaces: Namespaces, host: int, port: int) -> str:
    return f"{namespaces.network}.1.{10 * (host + 1) + port}/24"


def cluster_of(hosts: Hosts, device: OcsServer, certificate: Path) -> ClusterFile:
    plain = hosts.cluster()
    servers = tuple(
        replace(
            server,
            ports=tuple(
                PortEntry(
                    f"p{port}",
                    address_of(hosts.namespaces, host, port),
                    1.0,
                    switch=f"ocs0:{host * PORTS + port + 1}",
                )
                for port in range(PORTS)
            ),
        )
        for host, server in enumerate(plain.servers)
    )
    switch = SwitchEntry(
        "ocs0",
        "sonic-ocs",
        device.address,
        user="admin",
        password=PasswordSource(env="OCS_PASSWORD"),
        sockets=tuple(str(n + 1) for n in range(HOSTS * PORTS)),
        options={"ca_file": str(certificate), "poll_s": 0.02},
    )
    return replace(plain, servers=servers, switches=(switch,)).validate()


def test_the_launcher_of_server_0_moves_the_cable_and_all_ranks_go_on(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring_plan: RingPlan
) -> None:
    monkeypatch.setenv("OCS_PASSWORD", OcsServer.password)
    monkeypatch.setenv(SPARE_VARIABLE, "1")
    with Namespaces() as namespaces:
        hosts = make_hosts(HOSTS, [], Hosts(namespaces))
        devices = f"{namespaces.network}.0.254"
        ip(f"addr add {devices}/24 dev {hosts.bridge}")
        plug(hosts)
        certificate = write_certificate(tmp_path / "device.pem", devices)
        device = Glass(size=HOSTS * PORTS, host=hosts.names[0])
        with OcsServer(device, certificate, devices) as server:
            ring_plan(HOSTS).save(launcher.folder / "plan.json")
            file = cluster_of(hosts, server, certificate)
            ended = run_everywhere(launcher, hosts, file, "--plan", "../plan.json", script=SCRIPT)
    for done in ended:
        assert done.returncode == 0, done.stdout + done.stderr
    folders = [launcher.folder / f"server{number}" for number in range(HOSTS)]
    assert len({(folder / "steps").read_text() for folder in folders}) == 1
    wiring = Wiring.load(folders[0] / "run" / "wiring.json")
    assert [spare.server for spare in wiring.spares] == list(range(HOSTS))
    metrics = (folders[0] / "run" / "metrics.jsonl").read_text().splitlines()
    moved = [e for e in map(json.loads, metrics) if e["event"] == "cable" and e["moved"]]
    spares = {(spare.server, spare.port) for spare in wiring.spares}
    assert {tuple(end) for end in moved[0]["ports"]} < spares, moved
    used = {port for circuit in device.circuits() for port in circuit.ports}
    number = int(wiring.spares_of(0)[0].address.rpartition(".")[2]) % 10
    assert f"{number + 1}A" in used
