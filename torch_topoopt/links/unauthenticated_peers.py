"""Connections that prove nothing: bounded in number, in time and in lines of the log."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

UNAUTHENTICATED_S = 5.0  # that a connection may take for its proof, in all

_LINES = 5  # at once, and then
_LINES_PER_S = 0.1

_PEER_CREDENTIALS = struct.Struct("=3i")  # <sys/socket.h> struct ucred: pid, uid, gid

log = logging.getLogger("torch_topoopt")

_T = TypeVar("_T")


class Allowance:
    """A token bucket: `burst` at once, then `per_second`."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = self._left = burst
        self._per_second = per_second
        self._since = time.monotonic()

    def take(self) -> bool:
        """Whether one more is allowed now."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class UnauthenticatedPeers:
    """Counts those that were closed, and logs a line for each, or, where they are many, for some.

    A line says how many went without one before it. Threads may share it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._allowance = Allowance(_LINES, _LINES_PER_S)
        self._silent = 0  # closed since the last line
        self._lock = threading.Lock()

    def closed(self, peer: str, why: str) -> None:
        """`peer` as an address, `why` as a clause: "it sent nothing within 5 s"."""
        with self._lock:
            self.count += 1
            if not self._allowance.take():
                self._silent += 1
                return
            others = self._others(" (and %s)")
        log.warning("closed a connection from %s: %s%s", peer, why, others)

    def report(self) -> None:
        """Logs those that no line has counted yet."""
        with self._lock:
            others = self._others("%s that proved nothing")
        if others:
            log.warning("closed %s", others)

    def _others(self, form: str) -> str:
        count, self._silent = self._silent, 0
        return form % f"{count} other connection{'s' * (count > 1)}" if count else ""


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of an AF_UNIX connection, as the kernel knows them."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, user, _ = _PEER_CREDENTIALS.unpack(found)
    return pid, user


def to_close(unproven: Iterable[_T], address: Callable[[_T], str]) -> _T:
    """The one that makes room: the oldest of the address that most of them come from.

    `unproven` are in the order of their age and not empty. One address cannot drive out another.
    """
    found = list(unproven)
    per_address = Counter(map(address, found))
    most = max(per_address.values())
    return next(one for one in found if per_address[address(one)] == most)
