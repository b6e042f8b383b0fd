"""Limits unauthenticated connections in number, time and log lines."""

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

UNAUTHENTICATED_S = 5.0  # time limit of a connection's proof

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
        """Consumes one token; False if there is none."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class UnauthenticatedPeers:
    """Counts the closed ones, and logs a line for each; for many, it logs only some.

    A line includes the number of unlogged ones before it. Thread-safe.
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
        """Logs the number of unlogged ones."""
        with self._lock:
            others = self._others("%s that proved nothing")
        if others:
            log.warning("closed %s", others)

    def _others(self, form: str) -> str:
        count, self._silent = self._silent, 0
        return form % f"{count} other connection{'s' * (count > 1)}" if count else ""


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of an AF_UNIX connection, from the kernel."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, user, _ = _PEER_CREDENTIALS.unpack(found)
    return pid, user


def to_close(unproven: Iterable[_T], address: Callable[[_T], str]) -> _T:
    """The connection to evict: the oldest one of the most frequent address.

    So one address cannot evict another. `unproven` is not empty, and the oldest come first.
    """
    found = list(unproven)
    per_address = Counter(map(address, found))
    most = max(per_address.values())
    return next(one for one in found if per_address[address(one)] == most)
