"""Hosts that forward for each other, in namespaces; threads of this process are their launchers."""

from __future__ import annotations

import itertools
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from support.fabric.netns_fixtures import require_namespaces
from support.limits import limit_s
from support.plain_namespaces import End, Namespaces, ip, run, up
from support.plans import make_ring_plan
from support.refusals import refused
from support.thread_meeting import Board, ThreadMeeting

from torch_topoopt.fabric.cluster import host_forwarding
from torch_topoopt.fabric.cluster.forwarding_hosts import ForwardingHosts
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.switch import NetnsSwitch
from torch_topoopt.fabric.switches.circuit_mover import RoutedCircuitMover
from torch_topoopt.fabric.switches.spare_circuits import SwitchPort
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch_topoopt.fabric.netns.kernel import Result

HOSTS, PORTS = 4, 2
LIMIT_S = limit_s(5.0)


class Lab:
    """Host H's port P is socket PORTS * H + P + 1 of a switch in a namespace; all in one subnet."""

    def __init__(self, namespaces: Namespaces) -> None:
        namespaces.add_managed(HOSTS)
        self.names = list(namespaces.names)
        self.switch = namespaces.add()
        network = namespaces.network
        ends = [(host, port) for host in range(HOSTS) for port in range(PORTS)]
        self.address = {(h, p): f"{network}.1.{10 * (h + 1) + p}" for h, p in ends}
        for host, port in ends:
            far = f"socket{PORTS * host + port + 1}"
            namespaces.cable(End(self.names[host], f"nic{port}"), End(self.switch, far))
            up(self.names[host], f"nic{port}", f"{self.address[host, port]}/24")
            up(self.switch, far)
            run(*f"ip netns exec {self.switch} tc qdisc add dev {far} clsact".split())
        servers = tuple(
            ServerEntry(
                f"h{host}",
                f"{network}.0.{host + 1}",
                ports=tuple(
                    PortEntry(f"p{port}", f"{self.address[host, port]}/24") for port in range(PORTS)
                ),
            )
            for host in range(HOSTS)
        )
        cables = tuple((f"h{h}:p0", f"h{(h + 1) % HOSTS}:p1") for h in range(HOSTS))
        self.file = ClusterFile(1, "lab", servers, cables).validate()
        self.plan = make_ring_plan(HOSTS)

    def on(self, host: int, call: Callable[[], Result]) -> Result:
        return netns_kernel.inside(self.names[host], call)

    def joined(self) -> list[ForwardingHosts | FabricError]:
        """The launchers of all hosts meet."""
        board = Board()

        def join(host: int) -> ForwardingHosts | FabricError:
            meeting, leader = ThreadMeeting(board, host), self.file.servers[0].management
            try:
                return ForwardingHosts(self.plan, self.file, host, meeting, leader)
            except FabricError as error:
                return error

        with ThreadPoolExecutor(HOSTS) as pool:
            running = [
                pool.submit(self.on, host, lambda host=host: join(host)) for host in range(HOSTS)
            ]
            return [one.result() for one in running]

    def carries(self, source: str, target: str, sender: int, receiver: int) -> bool:
        """Whether a datagram arrives."""

        def opened(address: str, port: int) -> socket.socket:
            end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            end.settimeout(LIMIT_S)
            end.bind((address, port))
            return end

        with (
            self.on(receiver, lambda: opened(target, 7000)) as into,
            self.on(sender, lambda: opened(source, 7001)) as out,
        ):
            out.sendto(b"light", (target, 7000))
            return into.recv(16) == b"light"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    require_namespaces()
    monkeypatch.setenv(host_forwarding.STATE_VARIABLE, str(tmp_path))
    with Namespaces("tc") as namespaces:
        yield Lab(namespaces)


def all_of(lab: Lab) -> list[ForwardingHosts]:
    joined = lab.joined()
    hosts = [one for one in joined if isinstance(one, ForwardingHosts)]
    assert len(hosts) == HOSTS, joined
    return hosts


def left(lab: Lab) -> list[str]:
    rules = [line for name in lab.names for line in ip(f"-n {name} rule").splitlines()]
    return [rule for rule in rules if "proto 84" in rule]


def test_server_0_writes_and_selects_the_routes_of_all_hosts(lab: Lab, tmp_path: Path) -> None:
    hosts = all_of(lab)
    switch = NetnsSwitch(lab.switch, name="ocs0", delay_s=0.0)
    ports = [SwitchPort(h, p, "ocs0", str(PORTS * h + p + 1)) for h, p in lab.address]
    watched = {"ocs0": (switch, switch)}
    mover = RoutedCircuitMover(lab.plan, watched, ports, hosts[0], limit_s=LIMIT_S)
    pairs = list(itertools.permutations(range(HOSTS), 2))
    server = [entry.address for entry in hosts[0].addresses()]
    lab.on(0, mover.restore)
    for a, b in pairs:
        assert lab.carries(server[a], server[b], a, b)
    for link in lab.plan.network.links:
        near = lab.address[link.source, link.source_port]
        far = lab.address[link.target, link.target_port]
        assert lab.carries(near, far, link.source, link.target)

    def move() -> None:
        targets = {s: [(s + 1) % HOSTS, (s + 2) % HOSTS] for s in range(HOSTS)}
        mover.move([mover.prepare(targets)])
        hosts[0].release()

    lab.on(0, move)
    for a, b in pairs:
        assert lab.carries(server[a], server[b], a, b)
        assert all(lab.carries(lab.address[a, p], lab.address[b, p], a, b) for p in range(PORTS))
    for host in range(HOSTS):
        lab.on(host, hosts[host].close)
    assert left(lab) == []
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_cannot_is_named_on_all(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ip(f"-n {lab.names[2]} addr flush dev nic1")
    errors = lab.joined()
    assert len({str(error) for error in errors}) == 1
    assert "h2 (node rank 2" in str(errors[0])
    assert lab.address[2, 1] in str(errors[0])
    assert left(lab) == []


def test_a_launcher_that_has_ended_is_named(lab: Lab) -> None:
    hosts = all_of(lab)
    killed = hosts[3]
    assert hosts[0].gone() == []
    lab.on(1, hosts[1].close)
    killed._connection.shutdown(socket.SHUT_RDWR)  # as the kernel does
    number = dict.fromkeys(range(HOSTS), 0)

    def select(numbers: dict[int, int]) -> None:
        try:
            hosts[0].select(numbers)
        finally:
            hosts[0].release()

    for numbers in (number, {}):
        with refused(FabricError, "h3 (node rank 3", "gone"):
            lab.on(0, lambda numbers=numbers: select(numbers))
        selected = [host for host in (0, 2) if "500:" in ip(f"-n {lab.names[host]} rule")]
        assert selected == ([0, 2] if numbers else [])
    assert hosts[0].gone() == [3]
    for host in (0, 2, 3):
        lab.on(host, hosts[host].close)
    assert left(lab) == []


def test_requests_of_other_hosts_reach_server_0(lab: Lab) -> None:
    hosts = all_of(lab)

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.sendall(connection.recv(16)[::-1])

    hosts[0].on_requests = answer
    for host in (1, 2, 3, 1):
        with lab.on(host, hosts[host].connect_requests) as connection:
            connection.settimeout(LIMIT_S)
            connection.sendall(b"light")
            assert connection.recv(16) == b"thgil"
    for host in range(HOSTS):
        lab.on(host, hosts[host].close)
