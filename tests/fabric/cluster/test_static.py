"""The driver of plugged cables, on hosts that are threads: addresses of the loopback network.

What real cables and namespaces add is in tests/launcher/run/test_cluster_run.py.
"""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from support.limits import limit_s, slowness
from support.refusals import named, refused
from support.thread_meeting import Board, ThreadMeeting

from torch_topoopt.fabric.cluster.static import StaticFabric
from torch_topoopt.fabric.cluster.static_check import check_links
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.identity import Identity, wire_version
from torch_topoopt.links.proof import Expected
from torch_topoopt.links.rank_layout import RankLayout
from torch_topoopt.links.rank_links import JobNetwork, Timeouts, open_rank_links
from torch_topoopt.links.sockets import connections, ends_of
from torch_topoopt.links.wiring import PortAddress, Wiring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pytest
    from support.plans import RingPlan

    from torch_topoopt.fabric.cluster.static import Senders
    from torch_topoopt.plan import Plan

SECRET = bytes(32)
RING = [("h0:a", "h1:b"), ("h1:a", "h2:b"), ("h2:a", "h0:b")]


@dataclass
class CabledBoard(Board):
    """The rendezvous of the threads, and the senders that each port receives from."""

    senders: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


@dataclass
class Host:
    """A host whose interfaces have the given addresses."""

    board: CabledBoard
    addresses: list[str]

    def interfaces(self) -> dict[str, str]:
        return {address: f"nic-{address}" for address in self.addresses}

    @contextmanager
    def announce(
        self, token: str, udp_port: int, server: str, ports: Mapping[str, str]
    ) -> Iterator[Announcements]:
        yield Announcements(
            {p: frozenset(self.board.senders.get(f"{server}:{p}", ())) for p in ports}
        )


@dataclass
class Announcements:
    senders: Senders

    def wait(self, enough: Callable[[Senders], bool], deadline: float) -> Senders:
        return self.senders


def make_file() -> ClusterFile:
    """A ring of three, at addresses of the loopback network that this process has for itself."""
    with socket.socket() as unique:
        unique.bind(("127.0.0.1", 0))
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        block = 20 + worker % 4 * 50 + unique.getsockname()[1] % 50
    servers = tuple(
        ServerEntry(
            f"h{i}",
            f"10.0.0.{i + 1}",
            ports=(
                PortEntry("a", f"127.{block}.{i}.1/8", 1.0),
                PortEntry("b", f"127.{block}.{i}.2/8", 2.0),
            ),
        )
        for i in range(3)
    )
    return ClusterFile(1, "lab", servers, tuple(RING)).validate()


def addresses(file: ClusterFile, server: int) -> list[str]:
    return [port.ip for port in file.servers[server].ports]


def drivers(file: ClusterFile, board: CabledBoard, hosts: list[list[str]]) -> list[StaticFabric]:
    return [
        StaticFabric(
            file, server, ThreadMeeting(board, server), Host(board, own), timeout_s=2.0 * slowness()
        )
        for server, own in enumerate(hosts)
    ]


def connect_all(fabrics: list[StaticFabric], plan: Plan) -> list[Wiring | FabricError]:
    def connect(fabric: StaticFabric) -> Wiring | FabricError:
        try:
            return fabric.connect(plan)
        except FabricError as error:
            return error

    with ThreadPoolExecutor(len(fabrics)) as pool:
        return list(pool.map(connect, fabrics))


def test_all_hosts_come_to_one_wiring_at_which_the_ranks_can_open_their_links(
    ring_plan: RingPlan,
) -> None:
    file, board, plan = make_file(), CabledBoard(), ring_plan(3)
    fabrics = drivers(file, board, [addresses(file, server) for server in range(3)])
    wirings = connect_all(fabrics, plan)
    wiring = wirings[0]
    assert not isinstance(wiring, FabricError), wiring
    assert wirings == [wiring] * 3
    ports = wiring.by_port()
    for link in plan.network.links:
        ends = {
            ports[link.source, link.source_port].address,
            ports[link.target, link.target_port].address,
        }
        assert ends in [{file.ports[end][1].ip for end in cable} for cable in RING]
    assert all(port.gbps is None for port in wiring.ports), "a cable limits itself"
    assert {port.speed_gbps for port in wiring.ports} == {1.0, 2.0}

    def open_links(rank: int) -> int:
        network = JobNetwork(plan, wiring, RankLayout((0, 1, 2)))
        meeting = ThreadMeeting(board, rank)
        timeouts, version = Timeouts(10, 10), wire_version()
        opened = open_rank_links(network, rank, meeting, timeouts, version)
        opened.ports.close()
        for link in opened.planned:
            link.connection.close()
        return len(opened.planned)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(open_links, range(3))) == [2, 2, 2]
    for fabric in fabrics:
        fabric.close()
        fabric.close()


def test_a_driver_wires_one_plan_at_a_time(ring_plan: RingPlan) -> None:
    file, board = make_file(), CabledBoard()
    fabrics = drivers(file, board, [addresses(file, server) for server in range(3)])
    connect_all(fabrics, ring_plan(3))
    with refused(FabricError, "wired"):
        fabrics[0].connect(ring_plan(3))
    for fabric in fabrics:
        fabric.close()


def test_an_address_that_a_host_does_not_have_fails_all_hosts(ring_plan: RingPlan) -> None:
    file, board = make_file(), CabledBoard()
    hosts = [addresses(file, server) for server in range(3)]
    there = hosts[1].pop()
    outcomes = connect_all(drivers(file, board, hosts), ring_plan(3))
    assert len({str(outcome) for outcome in outcomes}) == 1
    message = str(outcomes[2])
    assert message.startswith("h1:b: this host (")
    assert named(message, there, "interface")
    assert f"it has {hosts[1][0]} on nic-{hosts[1][0]}" in message


def test_another_interface_than_the_file_says_is_an_error(ring_plan: RingPlan) -> None:
    file, board = make_file(), CabledBoard()
    port = replace(file.servers[0].ports[0], interface="enp7s0")
    first = replace(file.servers[0], ports=(port, file.servers[0].ports[1]))
    file = replace(file, servers=(first, *file.servers[1:]))
    hosts = [addresses(file, server) for server in range(3)]
    outcome = connect_all(drivers(file, board, hosts), ring_plan(3))[1]
    assert str(outcome) == (
        f"h0:a is enp7s0 in the cluster file, but {port.ip} is on nic-{port.ip} of this host"
    )


def test_a_link_that_fails_is_named_with_what_is_at_the_ends_of_its_cable(
    ring_plan: RingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, board = make_file(), CabledBoard()
    hosts = [addresses(file, server) for server in range(3)]
    board.senders = {
        "h0:a": [("h2", "b")],
        "h2:b": [("h0", "a")],
        "h0:b": [("h2", "a")],
        "h2:a": [("h0", "b")],
    }
    monkeypatch.setattr("torch_topoopt.fabric.cluster.static.listen", listen_elsewhere(file))
    outcomes = connect_all(drivers(file, board, hosts), ring_plan(3))
    assert len({str(outcome) for outcome in outcomes}) == 1
    message = str(outcomes[0])
    assert message.startswith(
        f"cable h0:a - h1:b (link from server 0 port 0 to server 1 port 1): "
        f"{file.ports['h1:b'][1].ip} refuses connections to TCP port "
    )
    assert message.endswith(
        "the cable at h0:a goes to h2:b; no port answers at the other end of h1:b"
    )


def listen_elsewhere(file: ClusterFile) -> Callable[[str, int, str], socket.socket]:
    """Host 1 listens at an address where no host looks for its port b."""
    from torch_topoopt.links.sockets import listen

    wrong = file.ports["h1:b"][1].ip
    return lambda address, port, _: listen(f"{address}9" if address == wrong else address, port)


def test_a_cable_that_is_right_points_to_addresses_and_firewalls(
    ring_plan: RingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, board = make_file(), CabledBoard()
    hosts = [addresses(file, server) for server in range(3)]
    board.senders = {"h0:a": [("h1", "b")], "h1:b": [("h0", "a")]}
    monkeypatch.setattr("torch_topoopt.fabric.cluster.static.listen", listen_elsewhere(file))
    message = str(connect_all(drivers(file, board, hosts), ring_plan(3))[0])
    assert message.endswith(
        "it is plugged in as the file says, so look at the addresses, their prefix lengths and the "
        "firewalls of both hosts"
    )


def test_a_plan_that_needs_another_cable_is_refused_before_anything_is_opened(
    ring_plan: RingPlan,
) -> None:
    file = replace(make_file(), cables=(RING[0], RING[1]))
    fabric = StaticFabric(file, 0, ThreadMeeting(CabledBoard(), 0), Host(CabledBoard(), []))
    with refused(FabricError, "h0", "h2"):
        fabric.connect(ring_plan(3))


def test_a_link_that_carries_small_packets_only_points_to_the_mtu(ring_plan: RingPlan) -> None:
    """The far end proves itself, and then discards all that is sent to it."""
    plan = ring_plan(2)
    (link,) = connections(plan)
    with socket.create_server(("127.0.0.1", 0)) as far, ThreadPoolExecutor(1) as pool:
        wiring = Wiring(
            *(Wiring.VERSION, "static", plan.digest(), far.getsockname()[1]),
            ports=(PortAddress(0, 0, "127.0.0.2", None), PortAddress(1, 0, "127.0.0.1", None)),
        )

        def swallow() -> None:
            with Handshakes(Identity(SECRET, plan.digest())) as handshakes:
                handshakes.expect(Expected(far, {ends_of(link): "link"}, lambda *_: None))
                handshakes.run(time.monotonic() + limit_s(10))
                while handshakes.proven(ends_of(link)).recv(1 << 16):
                    pass

        ended = pool.submit(swallow)
        failures = check_links(plan, wiring, 0, {}, SECRET, slowness())
        ended.result(limit_s(10))
    assert failures == {
        link: "127.0.0.1: answers, but 65536 of 65536 bytes do not arrive; is the MTU of both "
        "ends, and of all between them, the same?"
    }
