"""Connections between the launchers of a job's hosts and that of server 0, over the management
network.

Both ends prove that they know the job's secret (links/handshake.py). Every host has one connection
for commands, and one for each of its ranks that requests moves of circuits.
"""

from __future__ import annotations

import enum
import logging
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.identity import Ends, Kind
from torch_topoopt.links.proof import Expected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.links.identity import Identity

log = logging.getLogger("torch_topoopt")

_POLL_S = 0.5
_END_S = 10.0
_CONNECT_S = 30.0


class Purpose(enum.IntEnum):
    """The number of a connection in its Ends."""

    COMMANDS = 0
    REQUESTS = 1


class HostListener:
    """Accepts the proven connections of other hosts on server 0, in a thread, until closed.

    `hosts` has the name of each server. `on_connection` is called in the thread, and owns the
    connection. Raises FabricError if this host cannot listen at `address`.
    """

    def __init__(
        self,
        identity: Identity,
        address: str,
        hosts: Mapping[int, str],
        on_connection: Callable[[int, Purpose, socket.socket], None],
    ) -> None:
        self._on_connection = on_connection
        self._closing = False
        names = {
            _ends(server, purpose): f"the launcher of {name}"
            for server, name in hosts.items()
            for purpose in Purpose
        }
        with ExitStack() as stack:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                listener = socket.create_server((address, 0), family=family, backlog=1024)
            except OSError as error:
                raise FabricError(f"cannot listen at {address}: {error.strerror}") from None
            stack.enter_context(listener)
            self.port = int(listener.getsockname()[1])
            self._handshakes = stack.enter_context(Handshakes(identity))
            self._handshakes.expect(Expected(listener, names, lambda connection, ends: None))
            self._stack = stack.pop_all()
        self._thread = threading.Thread(target=self._serve, name="topoopt hosts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accepted connections stay open."""
        self._closing = True
        self._handshakes.wake()
        self._thread.join(_END_S)
        self._stack.close()

    def _serve(self) -> None:
        while not self._closing:
            for outcome in self._handshakes.poll(_POLL_S):
                if outcome.connection is None:
                    log.warning("%s", outcome.error)
                    continue
                outcome.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                purpose = Purpose(outcome.ends.number)
                self._on_connection(outcome.ends.source, purpose, outcome.connection)


def connect_to_leader(
    identity: Identity, server: int, purpose: Purpose, address: str, port: int
) -> socket.socket:
    """A proven connection from the launcher of `server` to that of server 0; raises FabricError."""
    ends, name = _ends(server, purpose), "the launcher of server 0"
    try:
        connection = socket.create_connection((address, port), _CONNECT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise FabricError(f"{name} at {address}:{port}: {error.strerror or error}") from None
    with Handshakes(identity) as handshakes:
        handshakes.dial(ends, name, connection, connected=True)
        handshakes.run(time.monotonic() + _CONNECT_S)
        return handshakes.take()[ends]


def _ends(server: int, purpose: Purpose) -> Ends:
    return Ends(Kind.HOST, server, -1, 0, -1, purpose)
