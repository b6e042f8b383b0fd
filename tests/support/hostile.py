"""The behaviours of strangers that every listener has to bear, in one table."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CROWD = 500
_DRIP_S = 0.02


@dataclass(frozen=True)
class Target:
    """A listener: `dial` connects to it, `opening` is what an honest client says first.

    `proof` is what that one said next, once: recorded, for its listener asks something else of the
    next client.
    """

    dial: Callable[[], socket.socket]
    opening: bytes
    proof: bytes = b""


def _say(target: Target, stack: ExitStack, words: bytes) -> socket.socket:
    """One that says that much and stays."""
    connection = stack.enter_context(target.dial())
    connection.setblocking(False)
    with contextlib.suppress(OSError):  # what it does not take, it does not take
        connection.send(words)
    return connection


def _port_scan(target: Target, stack: ExitStack) -> None:
    """Connects and resets, twenty times."""
    for _ in range(20):
        with target.dial() as connection:
            if connection.family == socket.AF_INET:
                reset = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)


def _http(target: Target, stack: ExitStack) -> None:
    _say(target, stack, b"GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n" * 8)


def _silence(target: Target, stack: ExitStack) -> None:
    for _ in range(CROWD):
        _say(target, stack, b"")


def _slow_drip(target: Target, stack: ExitStack) -> None:
    """A byte of an honest opening now and then."""
    connection = stack.enter_context(target.dial())
    stopped = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            for at in range(len(target.opening)):
                connection.sendall(target.opening[at : at + 1])
                if stopped.wait(_DRIP_S):
                    return

    dripping = threading.Thread(target=drip)
    dripping.start()
    stack.callback(dripping.join)
    stack.callback(stopped.set)


def _truncated(target: Target, stack: ExitStack) -> None:
    """Half an opening, and the end; and half of one, and nothing more."""
    half = target.opening[: len(target.opening) // 2]
    _say(target, stack, half).shutdown(socket.SHUT_WR)
    _say(target, stack, half)


def _replayed(target: Target, stack: ExitStack) -> None:
    _say(target, stack, target.opening + target.proof)


def _forged(target: Target, stack: ExitStack) -> None:
    """An honest opening, and a proof that is none."""
    _say(target, stack, target.opening + bytes(4096))


def _gigabyte_lengths(target: Target, stack: ExitStack) -> None:
    """Lengths as several protocols have them, and a start of what they announce."""
    for form in ("!Q", "<Q", "!I", "<I"):
        _say(target, stack, struct.pack(form, 0xC0000000) + bytes(1 << 16))
    _say(target, stack, b"\xff" * (1 << 16))


def _noise(target: Target, stack: ExitStack) -> None:
    _say(target, stack, random.Random(1).randbytes(1 << 16))


def _tls(target: Target, stack: ExitStack) -> None:
    """The start of a ClientHello."""
    _say(target, stack, bytes.fromhex("16030102000100 01fc0303") + bytes(508))


BEHAVIOURS: dict[str, Callable[[Target, ExitStack], None]] = {
    "port scan": _port_scan,
    "http": _http,
    "500 silent": _silence,
    "slow drip": _slow_drip,
    "truncated": _truncated,
    "replayed": _replayed,
    "forged": _forged,
    "gigabyte lengths": _gigabyte_lengths,
    "noise": _noise,
    "tls": _tls,
}


@contextlib.contextmanager
def strangers(behaviour: str, target: Target) -> Iterator[None]:
    """Inside, strangers of that behaviour are at the listener."""
    with ExitStack() as stack:
        BEHAVIOURS[behaviour](target, stack)
        yield
