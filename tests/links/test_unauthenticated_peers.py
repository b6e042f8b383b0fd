"""Unauthenticated peers at the listeners of ranks, at the start and while a job runs."""

from __future__ import annotations

import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from support.hostile import BEHAVIOURS, Target, strangers
from support.limits import limit_s, slowness

from torch_topoopt.links import handshake, unauthenticated_peers
from torch_topoopt.links.forwarded_links import ForwardedPort
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.identity import Ends, Identity, Kind
from torch_topoopt.links.local_links import LocalPort
from torch_topoopt.links.proof import Expected
from torch_topoopt.links.sockets import listen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = limit_s(20.0)
OURS = Identity(bytes(range(32)), "0123456789abcdef")
LINK = Ends(Kind.LINK, 0, 1, 2, 3)
NAME = "link from server 0 port 1 to server 2 port 3"
MOST_GROWTH_BYTES = 64 << 20


@pytest.fixture(params=["data port", "forwarded port", "local port"])
def door(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[[], socket.socket], Expected]]:
    """Connects to a listener of a rank; and what it expects."""
    if request.param == "data port":
        with listen("127.0.0.1", 0) as listener:
            expected = Expected(listener, {LINK: NAME}, lambda connection, ends: None)
            yield lambda: socket.create_connection(listener.getsockname(), LIMIT_S), expected
        return
    with LocalPort(2) if request.param == "local port" else ForwardedPort(2, "127.0.0.1") as port:
        ends = Ends(port.kind, 5, -1, 2, -1)
        expected = Expected(port._listener, {ends: NAME}, port._admit, port._trusts)
        yield lambda: port._dial(port.name, LIMIT_S), expected


def recorded(
    dial: Callable[[], socket.socket], expected: Expected
) -> tuple[Target, tuple[socket.socket, socket.socket]]:
    """What an honest end says, and its connection."""
    (ends,) = expected.names
    said: list[bytes] = []

    class Listening(Identity):
        def greeting(self, ends: Ends) -> bytes:
            said.append(super().greeting(ends))
            return said[-1]

        def proof(self, role: bytes, greeting: bytes, nonce: bytes) -> bytes:
            proof = super().proof(role, greeting, nonce)
            if role == b"connect":
                said.append(proof)
            return proof

    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, expected)
        near = connect(dial, ends, Listening(OURS.secret, OURS.plan_digest))
        return Target(dial, *said[:2]), (near, accepting.result(LIMIT_S))


def connect(
    dial: Callable[[], socket.socket], ends: Ends, identity: Identity = OURS
) -> socket.socket:
    with Handshakes(identity) as handshakes:
        handshakes.dial(ends, NAME, dial())
        handshakes.run(time.monotonic() + LIMIT_S)
        (connection,) = handshakes.take().values()
    return connection


def accept(expected: Expected) -> socket.socket:
    with Handshakes(OURS) as handshakes:
        handshakes.expect(expected)
        handshakes.run(time.monotonic() + LIMIT_S)
        (connection,) = handshakes.take().values()
    return connection


def close(*connections: socket.socket) -> None:
    for connection in connections:
        connection.close()


def memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_job_starts(behaviour: str, door: tuple[Callable[[], socket.socket], Expected]) -> None:
    """The strangers are first in the queue, where nobody accepts yet."""
    dial, expected = door
    (ends,) = expected.names
    target, pair = recorded(dial, expected)
    close(*pair)
    before = memory_bytes()
    with strangers(behaviour, target), ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, dial, ends)
        close(accept(expected), connecting.result(LIMIT_S))
    assert memory_bytes() - before < MOST_GROWTH_BYTES


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_link_is_taken_back(
    behaviour: str,
    door: tuple[Callable[[], socket.socket], Expected],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the job runs; all strangers are closed in the end, with few lines of the log."""
    monkeypatch.setattr(handshake, "_STRANGER_S", 0.5 * slowness())
    monkeypatch.setattr(unauthenticated_peers, "_LINES_PER_S", 0.0)  # however long this takes
    dial, expected = door
    (ends,) = expected.names
    target, pair = recorded(dial, expected)
    close(*pair)
    stopped = threading.Event()
    back: list[socket.socket] = []
    with Handshakes(OURS) as handshakes:
        handshakes.expect(expected)

        def serve() -> None:
            while not stopped.is_set() or handshakes._unproven:
                back.extend(o.connection for o in handshakes.poll(0.05) if o.connection)

        with ThreadPoolExecutor(1) as pool:
            serving = pool.submit(serve)
            with strangers(behaviour, target):
                near = connect(dial, ends)
            stopped.set()
            serving.result(LIMIT_S)
        assert handshakes.unauthenticated >= 1
    close(near, *back)
    assert len(back) == 1
    assert 1 <= len(caplog.records) <= 6
