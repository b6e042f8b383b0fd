"""`topoopt run --cluster --relay kernel`: circuits of real switches move during collectives.

The hosts are namespaces, each with its own launcher. A test server speaks the protocol of the
device, and its circuits steer the light between the ports of the hosts.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from plain_hosts import Hosts, make_hosts
from support.fabric.certificates import write_certificate
from support.fabric.mirrored_switches import LightPath, MirroredOcs, MirroredPolatis
from support.fabric.netns_fixtures import own_state
from support.fabric.polatis_restconf_server import PolatisRestconfServer
from support.fabric.sonic_ocs_server import OcsServer
from support.launcher import COMMAND
from support.limits import limit_s
from support.plain_namespaces import End, Namespaces, ip, run, up, wait_for_carrier
from support.refusals import named
from test_cluster_run import run_everywhere

from torch_topoopt.fabric.cluster.switched_plan import place_on_switches
from torch_topoopt.fabric.cluster_file.entries import PortEntry, SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.launcher import Launcher
    from support.plans import RingPlan

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

HOSTS, PORTS, SETTLE_S = 4, 2, 0.02
CALLS = 2
SCRIPT = f"""
import pathlib
import time
import torch
import torch.distributed as dist

def calls(rank, world):
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
    return found

def tried(rank, world):
    total = torch.arange(30_000) * (rank + 1)
    try:
        dist.all_reduce(total)
    except RuntimeError as error:
        return str(error)
    right = torch.arange(30_000) * (world * (world + 1) // 2)
    return "right" if torch.equal(total, right) else "wrong"

def notify_and_wait(rank, done, awaited):
    if rank == 0:
        deadline = time.monotonic() + {limit_s(30.0)}
        pathlib.Path(done).touch()
        while not pathlib.Path(awaited).exists():
            assert time.monotonic() < deadline, awaited
            time.sleep(0.01)
    dist.barrier()

dist.init_process_group("topoopt")
rank, world = dist.get_rank(), dist.get_world_size()
ours = calls(rank, world)
notify_and_wait(rank, "trained", "broken")
pathlib.Path("fault").write_text(tried(rank, world))
notify_and_wait(rank, "tried", "mended")
pathlib.Path("after").write_text(tried(rank, world))
dist.destroy_process_group()
dist.init_process_group("gloo")
for one, other in zip(ours, calls(rank, world), strict=True):
    assert torch.equal(one, other)
dist.destroy_process_group()
pathlib.Path("equal").touch()
"""


@dataclass
class Glass:
    """Hosts whose ports are sockets of one device: port P of host H is socket PORTS * H + P + 1."""

    hosts: Hosts
    device: MirroredOcs | MirroredPolatis
    file: ClusterFile

    def planned(self, plan: Plan) -> set[Circuit]:
        """The device's circuits for a plan."""
        (cables,) = place_on_switches(plan, self.file).cables.values()
        pairs = [(int(a), int(b)) for ends in cables for a, b in (ends, reversed(ends))]
        if isinstance(self.device, MirroredOcs):
            return {Circuit(f"{a}A", f"{b}B") for a, b in pairs}
        return {Circuit(str(a), str(self.device.size + b)) for a, b in pairs}

    def rules(self, but: int = -1) -> list[str]:
        """The rules, routes, neighbours and addresses that a job gives the hosts, except one."""
        found = []
        for name in (name for host, name in enumerate(self.hosts.names) if host != but):
            found += [rule for rule in ip(f"-n {name} rule").splitlines() if "proto 84" in rule]
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
    own_state(tmp_path, monkeypatch)
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


@contextlib.contextmanager
def faults(
    folder: Path, breaks: Callable[[], object], mends: Callable[[], object]
) -> Iterator[None]:
    """Inside, a thread breaks something once rank 0 has trained, and mends it once it has tried."""
    over = threading.Event()

    def follow() -> None:
        for done, what, told in (("trained", breaks, "broken"), ("tried", mends, "mended")):
            while not (folder / done).exists():
                if over.wait(0.02):
                    return
            what()
            (folder / told).touch()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def check_moved(
    launcher: Launcher, glass: Glass, ended: list[subprocess.CompletedProcess[str]], stopped: int
) -> list[str]:
    """Results equal gloo's, and circuits moved for all; what the ranks had during the fault."""
    for done in ended:
        assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(ended[0].stdout)
    assert summary["alltoall"]["moved"] == CALLS
    assert summary["collectives"]["moved"] == 2 * CALLS + 2 - stopped
    assert summary["collectives"]["stopped"] == stopped
    folders = [launcher.folder / f"server{number}" for number in range(HOSTS)]
    for folder in folders:
        assert (folder / "equal").exists()
        assert (folder / "after").read_text() == "right"
    assert glass.rules() == []
    assert glass.device.circuits() == glass.planned(Plan.load(launcher.folder / "plan.json"))
    return [(folder / "fault").read_text() for folder in folders]


@pytest.mark.parametrize("glass", ["sonic-ocs"], indirect=True)
def test_a_sonic_device_moves_circuits_of_several_hosts_and_a_dark_one_is_named(
    launcher: Launcher, glass: Glass, ring_plan: RingPlan
) -> None:
    assert isinstance(glass.device, MirroredOcs)
    plan, device = ring_plan(HOSTS), glass.device
    plan.save(launcher.folder / "plan.json")
    sockets = range(1, HOSTS * PORTS + 1)
    possible = {Circuit(f"{a}A", f"{b}B") for a in sockets for b in sockets}
    broken = possible - glass.planned(plan)

    def breaks() -> None:
        device.broken.update(broken)
        device.show()

    options = ("--plan", "../plan.json", *MOVES, "--json")
    with faults(launcher.folder / "server0", breaks, device.broken.clear):
        ended = run_everywhere(launcher, glass.hosts, glass.file, *options, script=SCRIPT)
    for fault in check_moved(launcher, glass, ended, stopped=1):
        assert any(str(circuit) in fault for circuit in broken)


@pytest.mark.parametrize("glass", ["polatis-restconf"], indirect=True)
def test_a_polatis_device_moves_circuits_of_several_hosts_and_its_restart_is_survived(
    launcher: Launcher, glass: Glass, ring_plan: RingPlan
) -> None:
    assert isinstance(glass.device, MirroredPolatis)
    plan, device = ring_plan(HOSTS), glass.device
    plan.save(launcher.folder / "plan.json")
    options = ("--plan", "../plan.json", *MOVES, "--json")
    folder = launcher.folder / "server0"
    with faults(folder, lambda: setattr(device, "reboot_after", 2), bool):
        ended = run_everywhere(launcher, glass.hosts, glass.file, *options, script=SCRIPT)
    assert check_moved(launcher, glass, ended, stopped=0) == ["right"] * HOSTS
    assert device.boots == 1


KILL = """
import os
import signal
import torch
import torch.distributed as dist

dist.init_process_group()
for call in range(1_000):
    dist.all_reduce(torch.ones(30_000))
    if call == 1 and dist.get_rank() == 2:
        os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("glass", ["sonic-ocs"], indirect=True)
def test_a_launcher_that_dies_ends_the_job_with_the_name_of_its_host(
    launcher: Launcher, glass: Glass, ring_plan: RingPlan
) -> None:
    ring_plan(HOSTS).save(launcher.folder / "plan.json")
    options = ("--plan", "../plan.json", *MOVES)
    ended = run_everywhere(launcher, glass.hosts, glass.file, *options, script=KILL)
    assert [done.returncode for done in ended if done is not ended[2]] == [1, 1, 1], ended
    warnings = [line for line in ended[0].stderr.splitlines() if "warning" in line]
    assert any(named(line, "h2", glass.hosts.managements[2]) for line in warnings), ended[0].stderr
    assert glass.rules(but=2) == []
    assert glass.rules() != []
    killed = glass.hosts.names[2]
    down = ("ip", "netns", "exec", killed, *COMMAND, "fabric", "down", "--all", "--json")
    for dry_run in ("--dry-run", ""):
        removed = json.loads(run(*down, *filter(None, [dry_run])))
        assert removed["host_routes"] is True
    assert glass.rules() == []
    assert json.loads(run(*down))["host_routes"] is False
