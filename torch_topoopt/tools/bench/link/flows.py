"""Floods and echoes of one host over TCP connections, for `topoopt bench link`.

A flood has its own connections. The sender stops in time and then closes its direction; the
receiver counts bytes in windows, reads on to the end, and closes. So no byte of one measurement is
under way during the next.
"""

from __future__ import annotations

import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.links import sockets
from torch_topoopt.plan import BYTES_PER_GBPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.links.wiring import PortAddress

LIMIT_S = 20.0  # of a connection that makes no progress
_WINDOWS = 5
_FEWEST_TRIPS = 5
_PIECE_BYTES = 256 << 10
_NUMBER = struct.Struct("!B")
# fields of struct tcp_info (<linux/tcp.h>): tcpi_bytes_sent and tcpi_bytes_retrans
_SENT, _SENT_AT = struct.Struct("=2Q"), 200


@dataclass(frozen=True)
class FloodCount:
    """What one host has seen of a flood. `gbps`: received; `core`: the busiest thread or interrupt
    handling of one core, as a fraction of that core; bytes of TCP that it sent, and sent again.
    """

    gbps: float
    core: float
    sent_bytes: int
    resent_bytes: int


def open_connections(
    near: PortAddress, listener: socket.socket, far: tuple[PortAddress, int] | None, count: int
) -> list[socket.socket]:
    """`count` connections in an order that both ends know; `far` is dialled, or accepted if None.

    Raises OSError.
    """
    opened: dict[int, socket.socket] = {}
    try:
        for number in range(count):
            if far is not None:
                connection = sockets.connect(near, *far, LIMIT_S)
                opened[number] = connection
                connection.sendall(_NUMBER.pack(number))
            else:
                listener.settimeout(LIMIT_S)
                connection, _ = listener.accept()
                connection.settimeout(LIMIT_S)
                (sent,) = _NUMBER.unpack(connection.recv(_NUMBER.size))
                opened[sent] = connection
                sockets.prepare(connection, near)
    except BaseException:
        for connection in opened.values():
            connection.close()
        raise
    return [opened[number] for number in range(count)]


class TcpFlood:
    """A flood over open connections: those of `sends` are sent to, the others received from."""

    def __init__(self, connections: Sequence[socket.socket], sends: Sequence[bool]) -> None:
        self._connections = list(zip(connections, sends, strict=True))
        self._received = [0] * len(connections)
        self._core = [0.0] * len(connections)
        self._tcp: list[tuple[int, int]] = []
        self._errors: list[OSError] = []

    def run(self, window_s: float) -> FloodCount:
        """Raises OSError."""
        end = time.monotonic() + (_WINDOWS + 2) * window_s
        threads = [
            threading.Thread(target=self._timed, args=(number, connection, sends, end), daemon=True)
            for number, (connection, sends) in enumerate(self._connections)
        ]
        interrupts = _interrupt_seconds()
        for thread in threads:
            thread.start()
        rates, begin = [], time.monotonic()
        for _ in range(_WINDOWS + 1):  # in the first, TCP looks for the rate
            before, at = sum(self._received), time.monotonic()
            time.sleep(window_s)
            rates.append((sum(self._received) - before) / (time.monotonic() - at))
        elapsed = time.monotonic() - begin
        busiest = _busiest(interrupts, elapsed)
        for thread in threads:
            thread.join(LIMIT_S + end - begin)
        for connection, _ in self._connections:
            connection.close()
        if self._errors:
            raise self._errors[0]
        return FloodCount(
            statistics.median(rates[1:]) / BYTES_PER_GBPS,
            max(busiest, *self._core),
            sum(sent for sent, _ in self._tcp),
            sum(resent for _, resent in self._tcp),
        )

    def _timed(self, number: int, connection: socket.socket, sends: bool, end: float) -> None:
        used, begin = time.thread_time(), time.monotonic()
        try:
            if sends:
                self._send(connection, end)
            else:
                self._receive(number, connection)
        except OSError as error:
            self._errors.append(error)
        self._core[number] = (time.thread_time() - used) / (time.monotonic() - begin)

    def _send(self, connection: socket.socket, end: float) -> None:
        piece = bytes(_PIECE_BYTES)
        while time.monotonic() < end:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # until the other end has everything, and closes
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(information) >= _SENT_AT + _SENT.size:  # since Linux 4.19
            sent, resent = _SENT.unpack_from(information, _SENT_AT)
            self._tcp.append((sent, resent))

    def _receive(self, number: int, connection: socket.socket) -> None:
        buffer = bytearray(_PIECE_BYTES)
        while count := connection.recv_into(buffer):
            self._received[number] += count
        connection.shutdown(socket.SHUT_WR)


def _interrupt_seconds() -> list[float]:
    """The ticks that each core has spent on network and other soft interrupts (proc(5))."""
    lines = Path("/proc/stat").read_text().splitlines()
    return [float(line.split()[7]) for line in lines if line[:3] == "cpu" and line[3] != " "]


def _busiest(before: Sequence[float], elapsed_s: float) -> float:
    """The fraction of one core's time; a tick is 10 ms."""
    now = _interrupt_seconds()
    if len(now) != len(before):
        return 0.0
    return max(b - a for a, b in zip(before, now, strict=True)) / 100 / elapsed_s


def echo(connection: socket.socket, size_bytes: int) -> None:
    """Sends back messages of a size until the other end closes; raises OSError."""
    message = bytearray(size_bytes)
    while _filled(connection, message):
        connection.sendall(message)


def latency_s(connection: socket.socket, size_bytes: int, limit_s: float) -> float:
    """Half of the median round trip; raises OSError."""
    message = bytearray(size_bytes)
    trips: list[float] = []
    end = time.monotonic() + limit_s
    while time.monotonic() < end or len(trips) < _FEWEST_TRIPS:
        begin = time.perf_counter()
        connection.sendall(message)
        if not _filled(connection, message):
            raise OSError("the connection ended")
        trips.append(time.perf_counter() - begin)
    return statistics.median(trips) / 2


def _filled(connection: socket.socket, message: bytearray) -> bool:
    """Whether the whole message came before the end. (With a time limit, MSG_WAITALL waits not.)"""
    view = memoryview(message)
    while view and (count := connection.recv_into(view)):
        view = view[count:]
    return not view
