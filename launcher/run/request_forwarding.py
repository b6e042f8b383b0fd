"""Requests of ranks on several hosts for moves of circuits, which the launcher of server 0 answers.

Each launcher offers its ranks a socket like that of the circuit service. It connects each of them
with server 0 (fabric/cluster/host_connections.py), whose launcher connects them with the service.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import tempfile
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.fabric.cluster.forwarding_hosts import ForwardingHosts

_SEND_S = 30.0  # for a receiver that does not read
_END_S = 10.0


class JoinedSockets:
    """Passes bytes on between pairs of sockets, in a thread, until one of a pair ends, or close().

    Owns the sockets.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._new: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="topoopt requests", daemon=True)
        self._thread.start()

    def join(self, one: socket.socket, other: socket.socket) -> None:
        """From any thread."""
        with self._lock:
            self._new.append((one, other))
        self._waker.send(b"!")

    def close(self) -> None:
        self._closing = True
        self._waker.send(b"!")
        self._thread.join(_END_S)
        self._waker.close()

    def _serve(self) -> None:
        with self._woken, self._selector:
            while not self._closing:
                for key, _ in self._selector.select():
                    if key.fileobj is self._woken:
                        self._take_new()
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() >= 0:
                        self._pass_on(key.fileobj, key.data)
            self._take_new()
            for key in tuple(self._selector.get_map().values()):
                if isinstance(key.data, socket.socket):
                    key.data.close()

    def _take_new(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096, socket.MSG_DONTWAIT)
        with self._lock:
            pairs, self._new = self._new, []
        for pair in pairs:
            for source, target in (pair, reversed(pair)):
                source.settimeout(_SEND_S)
                self._selector.register(source, selectors.EVENT_READ, target)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            data = source.recv(1 << 16)
            target.sendall(data)
            if data:
                return
        for end in (source, target):
            self._selector.unregister(end)
            end.close()


class ForwardedRequests:
    """Connects the ranks of this host with the circuit service of server 0, until it is closed.

    `path` is the socket for ranks.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._closing = False
        with ExitStack() as stack:
            folder = tempfile.mkdtemp(prefix="topoopt-circuits-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self.path = os.path.join(folder, "socket")
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(self.path)
            self._listener.listen()
            self._joined = JoinedSockets()
            stack.callback(self._joined.close)
            self._stack = stack.pop_all()
        self._thread = threading.Thread(target=self._accept, name="topoopt ranks", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._closing = True
        with suppress(OSError), socket.socket(socket.AF_UNIX) as wake:
            wake.connect(self.path)
        self._thread.join(_END_S)
        self._stack.close()

    def _accept(self) -> None:
        while True:
            rank, _ = self._listener.accept()
            if self._closing:
                return rank.close()
            try:
                self._joined.join(rank, self._connect())
            except FabricError:  # the rank reports it
                rank.close()


def to_service(hosts: ForwardingHosts, path: str, stack: ExitStack) -> None:
    """On server 0, until `stack` ends: connects ranks of other hosts with the service at `path`."""
    joined = JoinedSockets()
    stack.callback(joined.close)

    def accept(rank: socket.socket) -> None:
        service = socket.socket(socket.AF_UNIX)
        try:
            service.connect(path)
        except OSError:  # it has ended
            service.close()
            rank.close()
        else:
            joined.join(rank, service)

    hosts.on_requests = accept
