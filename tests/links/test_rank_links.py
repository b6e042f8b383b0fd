"""All ranks of a small job open their connections: threads that meet in a dictionary."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.limits import limit_s
from support.refusals import refused
from support.thread_meeting import Board, ThreadMeeting

from torch_topoopt.links import local_links
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import wire_version
from torch_topoopt.links.rank_layout import RankLayout
from torch_topoopt.links.rank_links import JobNetwork, RankLinks, Timeouts, open_rank_links
from torch_topoopt.links.sockets import listen
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.plan import Plan

RingPlan = Callable[..., Plan]
LIMIT_S = limit_s(30.0)
LOOPBACK = "127.0.0.1"


@dataclasses.dataclass
class Job:
    """Every server has one interface, and so one listener, for all its ports."""

    plan: Plan
    wiring: Wiring
    layout: RankLayout
    listeners: list[socket.socket]
    table: Board = dataclasses.field(default_factory=Board)
    wirings: dict[int, Wiring] = dataclasses.field(default_factory=dict)  # of ranks that err

    def open(self, rank: int) -> RankLinks:
        server = self.layout.server_of[rank]
        own = self.listeners[server]
        leads = self.layout.is_leader(rank)
        return open_rank_links(
            JobNetwork(
                self.plan,
                self.wirings.get(rank, self.wiring),
                self.layout,
                {own.getsockname(): own} if leads else {},
            ),
            rank,
            ThreadMeeting(self.table, rank),
            Timeouts(LIMIT_S, LIMIT_S),
            wire_version(),
        )

    def open_all(self) -> list[Any]:
        """RankLinks or the FabricError of every rank."""

        def attempt(rank: int) -> Any:
            try:
                return self.open(rank)
            except FabricError as error:
                return error

        world = len(self.layout.server_of)
        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(attempt, range(world)))


def make_job(plan: Plan, ranks_per_server: int) -> Job:
    servers = plan.cluster.servers
    listeners = [listen(LOOPBACK, 0) for _ in range(servers)]
    ends = sorted({(link.source, link.source_port) for link in plan.network.links})
    ports = tuple(
        PortAddress(s, p, LOOPBACK, None, tcp_port=listeners[s].getsockname()[1]) for s, p in ends
    )
    wiring = Wiring(Wiring.VERSION, "test", plan.digest(), 1, ports).validate().check(plan)
    return Job(plan, wiring, RankLayout.even(servers, servers * ranks_per_server), listeners)


def close(opened: list[Any]) -> None:
    for links in opened:
        links.ports.close()
        for link in links.planned:
            link.connection.close()
        for connection in links.local.values():
            connection.close()


def check(job: Job, opened: list[RankLinks]) -> None:
    """Both ends of every link and of every pair of ranks are each other's."""
    ends: dict[tuple[int, ...], socket.socket] = {}
    for links in opened:
        for own in links.planned:
            link = own.link
            ends[link.source, link.source_port, link.target, link.target_port] = own.connection
    assert len(ends) == len(job.plan.network.links)
    for source, source_port, target, target_port in ends:
        far = ends[target, target_port, source, source_port]
        ends[source, source_port, target, target_port].sendall(bytes([source, source_port]))
        far.settimeout(LIMIT_S)
        assert far.recv(2) == bytes([source, source_port])
    for rank, links in enumerate(opened):
        assert tuple(links.local) == job.layout.peers(rank)
        for peer, connection in links.local.items():
            connection.sendall(bytes([rank, peer]))
    for rank, links in enumerate(opened):
        for peer, connection in links.local.items():
            connection.settimeout(LIMIT_S)
            assert connection.recv(2) == bytes([peer, rank])


@pytest.mark.parametrize(("servers", "per_server"), [(1, 4), (2, 1), (4, 2), (3, 3)])
def test_ports_of_one_interface_share_a_listener(
    ring_plan: RingPlan, servers: int, per_server: int
) -> None:
    job = make_job(ring_plan(servers), per_server)
    opened = job.open_all()
    check(job, opened)
    assert all(listener.fileno() >= 0 for listener in job.listeners), "lost links come back to them"
    close(opened)
    assert all(listener.fileno() < 0 for listener in job.listeners)


def test_strangers_at_the_ports_are_no_error_of_the_job(ring_plan: RingPlan) -> None:
    job = make_job(ring_plan(3), 1)
    with socket.create_connection(job.listeners[1].getsockname()) as silent:
        silent.shutdown(socket.SHUT_WR)
        with socket.create_connection(job.listeners[2].getsockname()) as talking:
            talking.sendall(b"GET / HTTP/1.1\r\nHost: a.name.that.is.long.enough.example\r\n\r\n")
            opened = job.open_all()
    check(job, opened)
    close(opened)


def test_strangers_at_a_local_port_are_turned_away(ring_plan: RingPlan) -> None:
    job = make_job(ring_plan(1), 2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(job.open, 0)
        names = ThreadMeeting(job.table, 1).collect("listening", [0], time.monotonic() + LIMIT_S)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(f"\0{names[0]}")
            stranger.sendall(bytes(64))
            stranger.settimeout(LIMIT_S)
            opened = [None, job.open(1)]
            opened[0] = first.result(LIMIT_S)
            with contextlib.suppress(ConnectionResetError):  # closed before it was read out
                assert stranger.recv(1) == b"", "closed, not answered"
    check(job, opened)  # type: ignore[arg-type]
    close(opened)


def test_ranks_with_different_plans_refuse_each_other(ring_plan: RingPlan) -> None:
    job = make_job(ring_plan(2), 1)
    other = dataclasses.replace(job.wiring, plan_digest="0123456789abcdef")
    job.wirings[0] = other
    opened = job.open_all()
    wrong = f"plan 0123456789abcdef connects to plan {job.plan.digest()}"
    assert str(opened[1]) == f"link from server 0 port 0 to server 1 port 0: {wrong}"
    assert wrong in str(opened[0]), "both ends say so"


def test_a_rank_of_the_same_server_that_cannot_be_reached_is_named(
    ring_plan: RingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if rank 0 were in another network namespace."""
    job = make_job(ring_plan(1), 2)
    ThreadMeeting(job.table, 0).publish("secret", "00" * 32)
    ThreadMeeting(job.table, 0).publish("listening", "torch_topoopt/rank/missing")
    with refused(FabricError, "rank 1", "rank 0"):
        job.open(1)
    assert local_links.describe(1, 0) == "connection from rank 1 to rank 0 of the same server"
