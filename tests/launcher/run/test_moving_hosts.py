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
    from collections.abc import Callable, Iterator, Sequence
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
    """Hosts whose ports are sockets of devices: port P of each host is on device P, or the only."""

    hosts: Hosts
    devices: list[MirroredOcs | MirroredPolatis]
    file: ClusterFile

    @property
    def device(self) -> MirroredOcs | MirroredPolatis:
        (device,) = self.devices
        return device

    def planned(self, plan: Plan) -> list[set[Circuit]]:
        """The circuits of each device for a plan."""
        cables = place_on_switches(plan, self.file).cables
        found = []
        for number, device in enumerate(self.devices):
            both = [pair for ends in cables[f"ocs{number}"] for pair in (ends, ends[::-1])]
            if isinstance(device, MirroredOcs):
                found.append({Circuit(f"{a}A", f"{b}B") for a, b in both})
            else:
                found.append({Circuit(a, str(device.size + int(b))) for a, b in both})
        return found

    def rules(self, but: int = -1) -> list[str]:
        """The rules, routes, neighbours and addresses that a job gives the hosts, except one."""
        found = []
        for name in (name for host, name in enumerate(self.hosts.names) if host != but):
            found += [rule for rule in ip(f"-n {name} rule").splitlines() if "proto 84" in rule]
            found += ip(f"-n {name} route show table all proto 84").splitlines()
            found += ip(f"-n {name} neigh show nud permanent").splitlines()
            found += ip(f"-n {name} addr show dev lo to 198.19.0.0/16").splitlines()
        return found


def socket_of(host: int, port: int, devices: int) -> tuple[int, int]:
    """The device, and the number of its socket."""
    return (port, host + 1) if devices > 1 else (0, PORTS * host + port + 1)


def plug(hosts: Hosts, dark: Sequence[str]) -> None:
    """All ports are in one subnet. The inside of each device is one of the namespaces `dark`."""
    for host, name in enumerate(hosts.names):
        for port in range(PORTS):
            device, socket = socket_of(host, port, len(dark))
            near, far, inside = f"nic{port}", f"socket{socket}", dark[device]
            hosts.namespaces.cable(End(name, near), End(inside, far))
            up(name, near, address_of(hosts, host, port))
            up(inside, far)
            run(*f"ip netns exec {inside} tc qdisc add dev {far} clsact".split())
    wait_for_carrier((name, f"nic{port}") for name in hosts.names for port in range(PORTS))


def address_of(hosts: Hosts, host: int, port: int) -> str:
    return f"{hosts.namespaces.network}.1.{10 * (host + 1) + port}/24"


def cluster_of(hosts: Hosts, switches: Sequence[SwitchEntry]) -> ClusterFile:
    def port_of(host: int, port: int) -> PortEntry:
        device, socket = socket_of(host, port, len(switches))
        address = address_of(hosts, host, port)
        return PortEntry(f"p{port}", address, 0.1, switch=f"ocs{device}:{socket}")

    plain = hosts.cluster()
    servers = tuple(
        replace(server, ports=tuple(port_of(host, port) for port in range(PORTS)))
        for host, server in enumerate(plain.servers)
    )
    return replace(plain, servers=servers, switches=tuple(switches)).validate()


def device_of(
    kind: str, size: int, dark: str, certificate: Path, address: str
) -> OcsServer | PolatisRestconfServer:
    path = LightPath(dark)
    if kind == "sonic-ocs":
        ocs = MirroredOcs(size=size, settle_s=SETTLE_S, light_path=path)
        return OcsServer(ocs, certificate, address)
    users = {"admin": OcsServer.password}
    polatis = MirroredPolatis(size=size, settle_s=SETTLE_S, light_path=path, users=users)
    return PolatisRestconfServer(polatis, certificate, address)


@pytest.fixture
def glass(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Glass]:
    """`param`: the kinds of the devices."""
    own_state(tmp_path, monkeypatch)
    monkeypatch.setenv("SWITCH_PASSWORD", OcsServer.password)
    monkeypatch.setenv("TOPOOPT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "manage")
    kinds: list[str] = request.param.split()
    with Namespaces("tc") as namespaces, contextlib.ExitStack() as stack:
        hosts = make_hosts(HOSTS, [], Hosts(namespaces))
        address = f"{namespaces.network}.0.254"
        ip(f"addr add {address}/24 dev {hosts.bridge}")
        dark = [namespaces.add() for _ in kinds]
        del namespaces.names[HOSTS:]
        plug(hosts, dark)
        certificate = write_certificate(tmp_path / "device.pem", address)
        size, devices, entries = HOSTS * PORTS // len(kinds), [], []
        for number, kind in enumerate(kinds):
            server = device_of(kind, size, dark[number], certificate, address)
            devices.append(stack.enter_context(server).device)
            poll = {"poll_s": 0.01} if kind == "sonic-ocs" else {}
            entries.append(
                SwitchEntry(
                    *(f"ocs{number}", kind, server.address),
                    user="admin",
                    password=PasswordSource(env="SWITCH_PASSWORD"),
                    sockets=tuple(str(n + 1) for n in range(size)),
                    options={"ca_file": str(certificate), **poll},
                )
            )
        yield Glass(hosts, devices, cluster_of(hosts, entries))


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
    plan = Plan.load(launcher.folder / "plan.json")
    assert [device.circuits() for device in glass.devices] == glass.planned(plan)
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
    broken = possible - glass.planned(plan)[0]

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


@pytest.mark.exhaustive
@pytest.mark.parametrize("glass", ["sonic-ocs polatis-restconf"], indirect=True)
def test_circuits_of_two_devices_move_together(
    launcher: Launcher, glass: Glass, ring_plan: RingPlan
) -> None:
    ring_plan(HOSTS).save(launcher.folder / "plan.json")
    options = ("--plan", "../plan.json", *MOVES, "--json")
    with faults(launcher.folder / "server0", bool, bool):
        ended = run_everywhere(launcher, glass.hosts, glass.file, *options, script=SCRIPT)
    assert check_moved(launcher, glass, ended, stopped=0) == ["right"] * HOSTS


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


# In attempt 0 rank 1 raises; in attempt 1 rank 3 kills the launcher of its host, and itself.
RESTARTS = """
import os
import pathlib
import signal
import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
for _ in range(2):
    total = torch.arange(30_000) * (rank + 1)
    dist.all_reduce(total)
    assert torch.equal(total, torch.arange(30_000) * (world * (world + 1) // 2))
pathlib.Path(f"reduced{attempt}").write_text(str(world))
if (attempt, rank) == (0, 1):
    raise ValueError
if (attempt, rank) == (1, 3):
    os.kill(os.getppid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("glass", ["sonic-ocs"], indirect=True)
def test_circuits_move_after_restarts_also_without_a_lost_host(
    launcher: Launcher, glass: Glass
) -> None:
    options = ("--model=none", "--nnodes", "3:4", "--max-restarts", "2", *MOVES, "--json")
    ended = run_everywhere(launcher, glass.hosts, glass.file, *options, script=RESTARTS)
    assert [done.returncode for done in ended[:3]] == [0] * 3, ended
    for number in range(3):
        folder = launcher.folder / f"server{number}"
        assert [(folder / f"reduced{k}").read_text() for k in range(3)] == ["4", "4", "3"]
    assert json.loads(ended[0].stdout)["collectives"]["moved"] >= 4
    h3 = f"h3 (node rank 3, {glass.hosts.managements[3]}) is gone: its launcher has ended"
    assert ended[0].stderr.count(h3) == 1
    assert glass.rules(but=3) == []
