"""Connects the ranks of one server with each other, pairwise, by AF_UNIX sockets.

The names are abstract: they live in the network namespace, need no file, and vanish with their
socket. The kernel tells who connects; only processes of the same user are let in, and both ends say
which plan and which ranks they believe the connection is for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.fabric.links import time_left

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_HELLO = struct.Struct("!8s16s2I")  # magic, plan digest, rank that connects, rank that accepts
_MAGIC = b"TOPOSHM1"
_PEER_CREDENTIALS = struct.Struct("=3i")  # <sys/socket.h> struct ucred: pid, uid, gid
_QUEUE = 256  # of connections not yet accepted; Linux allows more


class LocalPort:
    """The connections of one rank with others on its server, while they are being opened.

    As with a server's ports, every rank takes each step before a later one has to succeed anywhere.
    """

    def __init__(self, rank: int, plan_digest: str) -> None:
        self._rank = rank
        self._plan_digest = plan_digest
        self.name = f"torch_topoopt/rank/{secrets.token_hex(8)}"
        self._connected: dict[int, socket.socket] = {}
        self._accepted: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stack = ExitStack()  # closes the connections unless all goes well
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(_QUEUE)

    def __enter__(self) -> LocalPort:
        return self

    def __exit__(self, *failure: object) -> None:
        self._listener.close()
        self._stack.close()

    def connect(self, names: Mapping[int, str], deadline: float) -> None:
        """Connects to the ports of other ranks (rank -> name) and says hello."""
        for rank, name in names.items():
            connection = self._stack.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            )
            connection.settimeout(time_left(deadline))
            try:
                connection.connect(f"\0{name}")
                connection.sendall(self._hello(self._rank, rank))
            except OSError as error:
                raise FabricError(
                    f"{describe(self._rank, rank)}: {_reason(error)}; ranks of one server must "
                    "run on one machine, in one network namespace"
                ) from None
            self._connected[rank] = connection

    def accept(self, ranks: Iterable[int], deadline: float) -> None:
        """Waits until each of `ranks` has connected, and answers its hello."""
        missing = set(ranks)
        while missing:
            try:
                self._listener.settimeout(time_left(deadline))
                connection = self._stack.enter_context(self._listener.accept()[0])
            except OSError as error:
                raise FabricError(
                    f"{describe(min(missing), self._rank)}: {_reason(error)}"
                ) from None
            rank = self._identify(connection, missing, deadline)
            if rank is None:
                connection.close()
                continue
            connection.sendall(self._hello(rank, self._rank))
            self._accepted[rank] = connection
            missing.discard(rank)

    def check_answers(self, deadline: float) -> None:
        """Reads the answers of the ranks that this one has connected to; raises FabricError."""
        for rank, connection in self._connected.items():
            where = describe(self._rank, rank)
            try:
                connection.settimeout(time_left(deadline))
                answer = _receive(connection)
            except OSError as error:
                raise FabricError(f"{where}: {_reason(error)}") from None
            if answer != self._hello(self._rank, rank):
                raise FabricError(f"{where}: the other end is in another job, or not a rank")

    def take(self) -> dict[int, socket.socket]:
        """Hands the connections over, by rank."""
        self._stack.pop_all()
        return dict(sorted((self._connected | self._accepted).items()))

    def _hello(self, source: int, target: int) -> bytes:
        return _HELLO.pack(_MAGIC, self._plan_digest.encode("ascii"), source, target)

    def _identify(
        self, connection: socket.socket, missing: set[int], deadline: float
    ) -> int | None:
        """The rank that has connected; None for a stranger, who is no error of this job."""
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size
        )
        if _PEER_CREDENTIALS.unpack(credentials)[1] != os.getuid():
            return None
        with contextlib.suppress(OSError):
            connection.settimeout(time_left(deadline))
            hello = _receive(connection)
            for rank in missing:
                if hello == self._hello(rank, self._rank):
                    return rank
        return None


def describe(source: int, target: int) -> str:
    return f"connection from rank {source} to rank {target} of the same server"


def _receive(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < _HELLO.size and (part := connection.recv(_HELLO.size - len(data))):
        data += part
    return data


def _reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error.strerror or error)
