"""Tests which addresses reach which, by short TCP connections with a hello from both ends.

The leader of every server listens at each of its addresses and answers probes in a thread, while it
sends its own. A probe that reaches another job, another server or another program does not count.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass

from torch_topoopt.discovery.flood_count import Flood
from torch_topoopt.links.addresses import (
    family_of,
    far_endpoint,
    own_endpoint,
    stay_on_cable,
)
from torch_topoopt.links.unauthenticated_peers import (
    UNAUTHENTICATED_S,
    Allowance,
    UnauthenticatedPeers,
    to_close,
)

_HELLO = struct.Struct("!8s16s2I")  # magic, job, server that probes, server that is meant
_QUESTION, _ANSWER, FLOOD = b"TOPOPRB1", b"TOPOPRB2", b"TOPOPRB3"
# a neighbour answers in 1 ms, or after TCP's retransmission in a second; unused addresses never do
TIMEOUT_S = 2.5
# connections without a hello; one more evicts one of them, and others wait in the listener's queue
_MOST_PROBERS = 256
_CROWD, _CROWD_PER_S, _CROWD_PAUSE_S = 4096, 500, 0.05
_LOOK_S = 1.0  # between checks for timeouts
_FLOOD_PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class Probe:
    """A test whether `source_address` of server `source` reaches `target`.

    `source_interface` matters if several are in one subnet of self-assigned addresses.
    """

    source: int
    source_address: str
    target: int
    target_address: str
    target_tcp_port: int
    source_interface: str | None = None


def hello(magic: bytes, job: str, source: int, target: int) -> bytes:
    """The first bytes of a connection."""
    return _HELLO.pack(magic, job.encode("ascii"), source, target)


@dataclass
class _Prober:
    address: str
    deadline: float
    hello: bytes = b""


class Responder:
    """Answers the probes that arrive at `listeners` until it is closed; leaves those open.

    It also counts the bytes of its job's floods (flood_count.py).
    """

    def __init__(self, listeners: list[socket.socket], job: str, server: int) -> None:
        self._job = job
        self._server = server
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._listeners = set(listeners)
        self._received: dict[socket.socket, _Prober] = {}  # the oldest first
        self._floods: dict[socket.socket, Flood] = {}
        self._unauthenticated = UnauthenticatedPeers()
        self._crowd = Allowance(_CROWD, _CROWD_PER_S)
        self._thread = threading.Thread(target=self._run, name="topoopt-probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._drop_late()
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._woken:
                    return self._stop()
                if key.fileobj in self._floods:
                    self._count(key.fileobj)  # type: ignore[arg-type]
                elif key.fileobj in self._listeners:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]

    def _stop(self) -> None:
        for connection in (*self._received, *self._floods):
            connection.close()
        self._unauthenticated.report()
        self._selector.close()
        self._woken.close()

    def _accept(self, listener: socket.socket) -> None:
        if len(self._received) >= _MOST_PROBERS:
            if not self._crowd.take():
                time.sleep(_CROWD_PAUSE_S)
                return
            crowding = to_close(self._received, lambda one: self._received[one].address)
            self._turn_away(crowding, "too many connections that ask nothing")
        try:
            connection, (address, *_) = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_CROWD_PAUSE_S)
            return
        connection.setblocking(False)
        self._received[connection] = _Prober(address, time.monotonic() + UNAUTHENTICATED_S)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        prober = self._received.get(connection)
        if prober is None:  # closed for a new one meanwhile
            return
        try:
            part = connection.recv(_HELLO.size - len(prober.hello))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        prober.hello += part
        length = min(len(prober.hello), len(_QUESTION))
        if not part:
            self._close(connection)
        elif not prober.hello.startswith((_QUESTION[:length], FLOOD[:length])):
            self._turn_away(connection, f"it asked no question: {prober.hello[:8]!r}")
        elif len(prober.hello) == _HELLO.size:
            source = _HELLO.unpack(prober.hello)[2]
            if prober.hello == hello(FLOOD, self._job, source, self._server):
                del self._received[connection]
                self._floods[connection] = Flood(time.monotonic())
                return
            if prober.hello == hello(_QUESTION, self._job, source, self._server):
                with contextlib.suppress(OSError):
                    connection.send(hello(_ANSWER, self._job, source, self._server))
            self._close(connection)  # without an answer, of another job

    def _count(self, connection: socket.socket) -> None:
        try:
            size = len(connection.recv(_FLOOD_PIECE_BYTES))
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size:
            self._floods[connection].add(size, time.monotonic())
        else:
            self._end_flood(connection)

    def _end_flood(self, connection: socket.socket) -> None:
        del self._floods[connection]
        self._selector.unregister(connection)
        connection.close()

    def _wait_s(self) -> float | None:
        if self._floods:
            soonest = min(flood.deadline for flood in self._floods.values())
            return max(0.0, soonest - time.monotonic())
        return _LOOK_S if self._received else None

    def _drop_late(self) -> None:
        now = time.monotonic()
        for connection in [c for c, flood in self._floods.items() if flood.deadline <= now]:
            if not self._floods[connection].answer(connection):
                self._end_flood(connection)
        for connection in [c for c, prober in self._received.items() if prober.deadline <= now]:
            self._turn_away(connection, f"it asked nothing within {UNAUTHENTICATED_S:g} s")

    def _turn_away(self, connection: socket.socket, why: str) -> None:
        self._unauthenticated.closed(self._received[connection].address, why)
        self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._received[connection]
        connection.close()


def open_connection(probe: Probe, sockets: contextlib.ExitStack) -> socket.socket | None:
    """Starts to open a connection; None if this host cannot."""
    near, far = probe.source_address, probe.target_address
    connection = sockets.enter_context(socket.socket(family_of(near), socket.SOCK_STREAM))
    connection.setblocking(False)
    try:
        stay_on_cable(connection, near, probe.source_interface)
        connection.bind(own_endpoint(near, 0))
        target = far_endpoint(far, probe.target_tcp_port, near)
    except OSError:
        return None
    return connection if connection.connect_ex(target) in (0, errno.EINPROGRESS) else None


def send_probes(probes: list[Probe], job: str, timeout_s: float = TIMEOUT_S) -> list[Probe]:
    """Sends all probes at once; returns those answered right in time, in their order."""
    answered = set()
    waiting: dict[socket.socket, tuple[Probe, bytes]] = {}
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as sockets, selectors.DefaultSelector() as selector:
        for probe in probes:
            if (connection := open_connection(probe, sockets)) is not None:
                waiting[connection] = (probe, b"")
                selector.register(connection, selectors.EVENT_WRITE)
        while waiting and (left := deadline - time.monotonic()) > 0:
            for key, events in selector.select(left):
                ready: socket.socket = key.fileobj  # type: ignore[assignment]
                probe, received = waiting[ready]
                outcome = _advance(ready, events, probe, received, job)
                if isinstance(outcome, bytes):
                    waiting[ready] = (probe, outcome)
                    selector.modify(ready, selectors.EVENT_READ)
                    continue
                if outcome:
                    answered.add(probe)
                selector.unregister(ready)
                del waiting[ready]
    return [probe for probe in probes if probe in answered]


def _advance(
    connection: socket.socket, events: int, probe: Probe, received: bytes, job: str
) -> bytes | bool:
    """The bytes received so far, or at the end whether the answer is right."""
    ends = (job, probe.source, probe.target)
    try:
        if events & selectors.EVENT_WRITE:
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return False
            connection.send(hello(_QUESTION, *ends))
            return b""
        part = connection.recv(_HELLO.size - len(received))
    except OSError:
        return False
    received += part
    if part and len(received) < _HELLO.size:
        return received
    return received == hello(_ANSWER, *ends)
