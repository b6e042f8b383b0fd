"""Requests of ranks pass through two launchers, and back; ends do, too."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.memory_mover import MemoryMover

from torch_topoopt.launcher.run.request_forwarding import (
    ForwardedRequests,
    JoinedSockets,
    to_service,
)
from torch_topoopt.links.errors import FabricError
from torch_topoopt.reconfiguration.circuit_service import CircuitService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = limit_s(10.0)


class Launchers:
    """In place of ForwardingHosts: connections of the other host arrive at `on_requests`."""

    def __init__(self) -> None:
        self.on_requests: Callable[[socket.socket], None] = lambda connection: connection.close()
        self.reachable = True

    def connect(self) -> socket.socket:
        if not self.reachable:
            raise FabricError("server 0 is gone")
        near, far = socket.socketpair()
        self.on_requests(far)
        return near


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def connected(path: str, stack: contextlib.ExitStack) -> socket.socket:
    rank = stack.enter_context(socket.socket(socket.AF_UNIX))
    rank.settimeout(LIMIT_S)
    rank.connect(path)
    return rank


def read_line(rank: socket.socket) -> str:
    line = b""
    while not line.endswith(b"\n"):
        data = rank.recv(1)
        assert data, line
        line += data
    return line.decode().rstrip()


def test_a_rank_of_another_host_talks_to_the_service_of_server_0(
    stack: contextlib.ExitStack,
) -> None:
    service = CircuitService(2, MemoryMover(), None)
    stack.enter_context(service)
    launchers = Launchers()
    to_service(launchers, service.path, stack)  # type: ignore[arg-type]
    requests = stack.enter_context(ForwardedRequests(launchers.connect))
    ranks = [connected(path, stack) for path in (service.path, requests.path)]
    for number, rank in enumerate(ranks):
        rank.sendall(b"rank %d %d\n" % (number, number))
        assert read_line(rank) == "asks 0 inf"
    for number, rank in enumerate(ranks):
        rank.sendall(b"collective 7 0 0,1 0,1 all_reduce 100 %d 1.0 -\n" % number)
    assert [read_line(rank) for rank in ranks] == ["stay 7 0"] * 2
    ranks[0].sendall(b"collective 7 1 0,1 0,1 all_reduce 100 1 1.0 -\n")
    ranks[1].close()
    assert read_line(ranks[0]) == "stop 7 1 server 1 has left"


def test_bytes_pass_in_both_directions_until_one_end_closes() -> None:
    joined = JoinedSockets()
    pairs = [(socket.socketpair(), socket.socketpair()) for _ in range(3)]
    data = bytes(range(256)) * 2000
    for (near, inner), (other, far) in pairs:
        joined.join(inner, other)
        near.settimeout(LIMIT_S)
        far.settimeout(LIMIT_S)
        for source, target in ((near, far), (far, near)):
            source.sendall(data[:50_000])
            received = b""
            while len(received) < 50_000:
                received += target.recv(1 << 16)
            assert received == data[:50_000]
    (near, _), (_, far) = pairs[0]
    near.close()
    assert far.recv(1) == b""
    joined.close()
    for (near, _), (_, far) in pairs[1:]:
        assert (near.recv(1), far.recv(1)) == (b"", b"")
    for (near, _), (_, far) in pairs:
        near.close()
        far.close()


def test_without_server_0_a_rank_is_disconnected(stack: contextlib.ExitStack) -> None:
    launchers = Launchers()
    launchers.reachable = False
    requests = stack.enter_context(ForwardedRequests(launchers.connect))
    assert connected(requests.path, stack).recv(1) == b""
    launchers.reachable = True
    to_service(launchers, f"{requests.path}-ended", stack)  # type: ignore[arg-type]
    assert connected(requests.path, stack).recv(1) == b""
