"""The loopback fabric: exactly the planned links, each verified from both ends."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric import loopback
from torch_topoopt.fabric.loopback import LoopbackFabric, candidate_blocks
from torch_topoopt.links import sockets
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import PortAddress
from torch_topoopt.plan import Plan

RingPlan = Callable[..., Plan]

LIMIT_S = limit_s(20.0)
JOB = 424_242  # above every process id in use, so no other job derives the same blocks


@pytest.fixture
def driver() -> Iterator[LoopbackFabric]:
    fabric = LoopbackFabric(job=JOB)
    yield fabric
    fabric.close()


def _connections(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Records (source address, target address) of every connection that is opened from now on."""
    opened: list[tuple[str, str]] = []

    class Recorder(socket.socket):
        def connect(self, address: Any) -> None:
            super().connect(address)
            opened.append((self.getsockname()[0], address[0]))

    monkeypatch.setattr(sockets.socket, "socket", Recorder)
    return opened


@pytest.mark.parametrize(("servers", "cables"), [(2, 1), (3, 3), (4, 4), (5, 5)])
def test_a_duplex_cable_is_one_connection(
    ring_plan: RingPlan,
    driver: LoopbackFabric,
    monkeypatch: pytest.MonkeyPatch,
    servers: int,
    cables: int,
) -> None:
    opened = _connections(monkeypatch)
    plan = ring_plan(servers)
    wiring = driver.connect(plan)
    ports = wiring.by_port()
    planned = {
        frozenset((ports[k.source, k.source_port].address, ports[k.target, k.target_port].address))
        for k in plan.network.links
    }
    assert len(opened) == cables
    assert {frozenset(ends) for ends in opened} == planned


def test_a_simplex_link_is_a_connection_from_its_source(
    ring_plan: RingPlan, driver: LoopbackFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = _connections(monkeypatch)
    plan = ring_plan(3, ports="simplex")
    ports = driver.connect(plan).by_port()
    assert opened == [
        (ports[k.source, k.source_port].address, ports[k.target, k.target_port].address)
        for k in plan.network.links
    ]


def test_every_port_has_a_loopback_address_of_its_own(
    ring_plan: RingPlan, driver: LoopbackFabric
) -> None:
    wiring = driver.connect(ring_plan(4))
    assert len({port.address for port in wiring.ports}) == len(wiring.ports) == 8
    block = wiring.ports[0].address.split(".")[1]
    for port in wiring.ports:
        assert port.address == f"127.{block}.{port.server}.{port.port + 1}"
    assert wiring.fabric == "loopback"


def test_two_jobs_of_one_plan_never_share_addresses(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    with (
        contextlib.closing(LoopbackFabric(job=JOB)) as first,
        contextlib.closing(LoopbackFabric(job=JOB)) as second,
    ):
        taken = {port.address for port in first.connect(plan).ports}
        other = {port.address for port in second.connect(plan).ports}
    assert not taken & other


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The only block and TCP port that are tried; jobs beside this test derive none from 252 on."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    block = (252 + worker % 3, 20_000)
    monkeypatch.setattr(loopback, "candidate_blocks", lambda digest, job: iter([block]))
    return block


@pytest.mark.usefixtures("only")
def test_closing_frees_the_addresses(ring_plan: RingPlan, driver: LoopbackFabric) -> None:
    plan = ring_plan(4)
    first = driver.connect(plan)
    driver.close()
    assert driver.connect(plan) == first


def test_a_driver_wires_one_plan_at_a_time(ring_plan: RingPlan, driver: LoopbackFabric) -> None:
    driver.connect(ring_plan(3))
    with refused(FabricError, "wired"):
        driver.connect(ring_plan(4))


def test_an_address_in_use_moves_the_job_to_another_block(
    ring_plan: RingPlan, driver: LoopbackFabric
) -> None:
    plan = ring_plan(4)
    block, tcp_port = next(candidate_blocks(plan.digest(), JOB))
    with socket.create_server((f"127.{block}.3.2", tcp_port)):
        wiring = driver.connect(plan)
    assert not any(port.address.startswith(f"127.{block}.") for port in wiring.ports)


def test_no_free_block_is_an_error_that_names_the_address(
    ring_plan: RingPlan, driver: LoopbackFabric, only: tuple[int, int]
) -> None:
    plan = ring_plan(4)
    with (
        socket.create_server((f"127.{only[0]}.1.1", only[1])),
        refused(FabricError, f"127.{only[0]}.1.1", only[1]),
    ):
        driver.connect(plan)
    driver.connect(plan)  # nothing of the failed attempt is left behind


@contextlib.contextmanager
def _other_end(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> Iterator[None]:
    """All links lead to a program that answers so."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(
            sockets, "connect", lambda *_: socket.create_connection(server.getsockname())
        )

        def run() -> None:
            with server.accept()[0] as connection, contextlib.suppress(OSError):
                connection.sendall(answer)
                connection.settimeout(LIMIT_S)
                while connection.recv(1000):
                    pass

        answering = pool.submit(run)
        yield
        answering.result(LIMIT_S)


def test_a_stranger_at_the_other_end_is_found_and_the_link_named(
    ring_plan: RingPlan, driver: LoopbackFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        _other_end(monkeypatch, b"HTTP/1.1 400 Bad Request\r\n" * 3),
        refused(FabricError, "server 0", "port 0", "server 1", "port 1"),
    ):
        driver.connect(ring_plan(4))


def test_silence_at_the_other_end_runs_into_the_time_limit(
    ring_plan: RingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        _other_end(monkeypatch, b""),
        contextlib.closing(LoopbackFabric(job=JOB, timeout_s=0.1)) as driver,
        refused(FabricError, "server 0", "port 0", 0.1),
    ):
        driver.connect(ring_plan(4))


def test_more_servers_than_addresses_is_refused(driver: LoopbackFabric) -> None:
    class Oversized:
        class cluster:  # noqa: N801 - stands in for a Plan with too many servers
            servers, degree = 256, 2

    with refused(FabricError, "servers", 256, 255):
        driver.connect(Oversized)  # type: ignore[arg-type]


def test_a_bandwidth_is_written_to_the_wiring_of_every_port(ring_plan: RingPlan) -> None:
    with contextlib.closing(LoopbackFabric(job=JOB, gbps=0.15)) as driver:
        assert {port.gbps for port in driver.connect(ring_plan(3)).ports} == {0.15}


def test_the_kernel_holds_a_connection_to_its_rate() -> None:
    gbps = 0.1
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=limit_s(20)) as connection,
        server.accept()[0] as other,
    ):
        sockets.limit_rate(connection, gbps)
        connection.sendall(bytes(100_000))
        received = 0
        while received < 100_000:
            received += len(other.recv(1 << 16))
        # struct tcp_info of <linux/tcp.h>: tcpi_pacing_rate and tcpi_max_pacing_rate, bytes per s
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 120)
    pacing, most = struct.unpack_from("@QQ", info, 104)
    assert most == gbps * 1e9 / 8
    assert 0 < pacing <= most


@pytest.mark.parametrize(
    ("gbps", "segment"),
    [(0.001, 256), (0.008, 500), (0.02, 1250), (0.05, 31_250), (0.15, None), (None, None)],
    ids=["1Mbps", "8Mbps", "20Mbps", "50Mbps", "150Mbps", "unlimited"],
)
def test_a_segment_is_sent_in_a_few_ms_at_the_rate_of_its_link_in_both_directions(
    gbps: float | None, segment: int | None
) -> None:
    """Linux sends a segment at once: 64 KB, which loopback allows, would be 130 ms at 4 Mb/s."""
    near, far = (PortAddress(server, 0, f"127.0.0.{server + 1}", gbps=gbps) for server in (0, 1))
    with sockets.listen(far.address, 0) as listener:
        tcp_port = listener.getsockname()[1]
        with (
            sockets.connect(near, far, tcp_port, timeout_s=LIMIT_S) as connection,
            listener.accept()[0] as accepted,
        ):
            for end in (connection, accepted):
                used = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
                assert used > 20_000 if segment is None else segment - 12 <= used <= segment
