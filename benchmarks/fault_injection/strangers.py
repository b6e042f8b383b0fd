"""Strangers at the listeners of a fabric's hosts: connections of programs that are no ranks."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from fault_injection.broken_cables import listeners
from torch_topoopt.fabric.netns import kernel as netns_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from fault_injection.broken_cables import Listener

_CROWD = 500
_SCANS = 50
_DIAL_LIMIT_S = 2.0
_DRIP_S = 0.02
_LOOK_AGAIN_S = 0.02
_OPENING = b"TOPOOPT3" + bytes(200)  # as long as an honest one, and with its first bytes


def _say(dial: Callable[[], socket.socket], stack: ExitStack, words: bytes) -> None:
    """Says that, and stays."""
    connection = stack.enter_context(dial())
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        connection.send(words)


def _port_scan(dial: Callable[[], socket.socket], stack: ExitStack) -> None:
    for _ in range(_SCANS):
        with dial() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _http(dial: Callable[[], socket.socket], stack: ExitStack) -> None:
    _say(dial, stack, b"GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n" * 8)


def _silent_crowd(dial: Callable[[], socket.socket], stack: ExitStack) -> None:
    for _ in range(_CROWD):
        _say(dial, stack, b"")


def _slow_drip(dial: Callable[[], socket.socket], stack: ExitStack) -> None:
    connection = stack.enter_context(dial())
    stopped = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            for at in range(len(_OPENING)):
                connection.sendall(_OPENING[at : at + 1])
                if stopped.wait(_DRIP_S):
                    return

    dripping = threading.Thread(target=drip)
    dripping.start()
    stack.callback(dripping.join)
    stack.callback(stopped.set)


def _forged(dial: Callable[[], socket.socket], stack: ExitStack) -> None:
    _say(dial, stack, _OPENING + bytes(4096))


def _truncated(dial: Callable[[], socket.socket], stack: ExitStack) -> None:
    _say(dial, stack, _OPENING[: len(_OPENING) // 2])


def _gigabyte_lengths(dial: Callable[[], socket.socket], stack: ExitStack) -> None:
    for form in ("!Q", "<Q", "!I", "<I"):
        _say(dial, stack, struct.pack(form, 0xC0000000) + bytes(1 << 16))
    _say(dial, stack, b"\xff" * (1 << 16))


def _noise(dial: Callable[[], socket.socket], stack: ExitStack) -> None:
    _say(dial, stack, random.Random(1).randbytes(1 << 16))


BEHAVIOURS: dict[str, Callable[[Callable[[], socket.socket], ExitStack], None]] = {
    "port scan": _port_scan,
    "http": _http,
    "500 silent": _silent_crowd,
    "slow drip": _slow_drip,
    "forged handshake": _forged,
    "truncated handshake": _truncated,
    "gigabyte lengths": _gigabyte_lengths,
    "noise": _noise,
}


def _dial(listener: Listener) -> socket.socket:
    return socket.create_connection((listener.address, listener.port), _DIAL_LIMIT_S)


class Strangers:
    """Some at every listener of the namespaces from now until repair(); `visited` counts these."""

    def __init__(self, behaviours: list[str], namespaces: list[str]) -> None:
        self.visited = 0
        self._stack = ExitStack()
        self._known: set[Listener] = set()
        self._behaviours = behaviours
        self._namespaces = namespaces

    def come(self) -> None:
        """Visits the listeners that are there and were not visited."""
        for namespace in self._namespaces:
            for listener in set(listeners(namespace)) - self._known:
                self._known.add(listener)
                with contextlib.suppress(OSError):  # it listens no longer, or takes no more
                    netns_kernel.inside(namespace, partial(self._visit, listener))
                    self.visited += 1

    def _visit(self, listener: Listener) -> None:
        for behaviour in self._behaviours:
            BEHAVIOURS[behaviour](lambda: _dial(listener), self._stack)

    def repair(self) -> None:
        self._stack.close()


class StrangersAtTheStart:
    """All behaviours at every listener of the namespaces, from before it is there."""

    def __init__(self, namespaces: list[str]) -> None:
        self._strangers = Strangers(list(BEHAVIOURS), namespaces)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def visited(self) -> int:
        return self._strangers.visited

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_AGAIN_S):
            self._strangers.come()

    def repair(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._strangers.repair()
