"""Connections between two ranks that are no planned link: both ends say for whom they are."""

from __future__ import annotations

import contextlib
import struct
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.fabric.links import time_left

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping

_HELLO = struct.Struct("!8s16s2I")  # magic, plan digest, rank that connects, rank that accepts
_QUEUE = 256  # of connections not yet accepted; Linux allows more


class RankPort(ABC):
    """The connections of one rank with others of one kind, while they are being opened.

    As with a server's ports, every rank takes each step before a later one has to succeed anywhere.
    `name` is where the others find this rank; `magic` distinguishes the kinds.
    """

    name: str

    def __init__(self, rank: int, plan_digest: str, listener: socket.socket, magic: bytes) -> None:
        self._rank = rank
        self._plan_digest = plan_digest
        self._magic = magic
        self._connected: dict[int, socket.socket] = {}
        self._accepted: dict[int, socket.socket] = {}
        self._listener = listener
        self._stack = ExitStack()  # closes the connections unless all goes well
        self._stack.callback(listener.close)
        listener.listen(_QUEUE)

    def __enter__(self) -> RankPort:
        return self

    def __exit__(self, *failure: object) -> None:
        self._listener.close()
        self._stack.close()

    def connect(self, names: Mapping[int, str], deadline: float) -> None:
        """Connects to the ports of other ranks (rank -> name) and says hello."""
        for rank, name in names.items():
            try:
                connection = self._stack.enter_context(self._dial(name, time_left(deadline)))
                connection.sendall(self._hello(self._rank, rank))
            except OSError as error:
                raise FabricError(
                    f"{self._describe(self._rank, rank)}: {_reason(error)}{self._hint()}"
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
                    f"{self._describe(min(missing), self._rank)}: {_reason(error)}"
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
            where = self._describe(self._rank, rank)
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

    @abstractmethod
    def _dial(self, name: str, timeout_s: float) -> socket.socket:
        """Connects to another rank's port; raises OSError."""

    def _trusts(self, connection: socket.socket) -> bool:
        """Whether the process at the other end may be a rank of this job at all."""
        return True

    def _hint(self) -> str:
        """A likely cause of a failed connection, for the end of the message."""
        return ""

    @staticmethod
    @abstractmethod
    def _describe(source: int, target: int) -> str:
        """Names a connection in messages."""

    def _hello(self, source: int, target: int) -> bytes:
        return _HELLO.pack(self._magic, self._plan_digest.encode("ascii"), source, target)

    def _identify(
        self, connection: socket.socket, missing: set[int], deadline: float
    ) -> int | None:
        """The rank that has connected; None for a stranger, which is no error of this job."""
        if not self._trusts(connection):
            return None
        with contextlib.suppress(OSError):
            connection.settimeout(time_left(deadline))
            hello = _receive(connection)
            for rank in missing:
                if hello == self._hello(rank, self._rank):
                    return rank
        return None


def _receive(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < _HELLO.size and (part := connection.recv(_HELLO.size - len(data))):
        data += part
    return data


def _reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error.strerror or error)
