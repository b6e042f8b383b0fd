"""Measures the rates of connections by short floods of bytes from all hosts at once.

A flood uses a TCP connection to an address that answers probes. The receiver counts for FLOOD_S and
answers with the rate of the best window. So the duration of a measurement does not depend on rates.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from torch_topoopt.discovery.flood_count import ANSWER_S, FLOOD_S, RESULT
from torch_topoopt.discovery.probe import FLOOD, Probe, hello, open_connection
from torch_topoopt.plan import BYTES_PER_GBPS

if TYPE_CHECKING:
    from collections.abc import Mapping

_PIECE = bytes(1 << 18)
_ABORT = struct.pack("ii", 1, 0)  # struct linger: close drops unsent bytes
# Fields of struct tcp_info (<linux/tcp.h>), in us: tcpi_min_rtt; and of the time in which something
# was sent and not acknowledged, all of it and the parts that either end's buffers have limited.
_MIN_RTT, _MIN_RTT_AT = struct.Struct("=I"), 148
_BUSY, _BUSY_AT = struct.Struct("=3Q"), 168
# if processors are the limit, at times all sent bytes are acknowledged
_ALWAYS_BUSY = 0.9


@dataclass(frozen=True)
class FloodRate:
    """The rate of a flood along `probe`, and the least round trip between the two kernels.

    `limited_by_link`: bytes waited for the network all the time, not for processors.
    """

    probe: Probe
    gbps: float
    round_trip_s: float
    limited_by_link: bool

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Decodes the JSON of `asdict`."""
        return cls(**{**plain, "probe": Probe(**plain["probe"])})


def send_floods(probes: list[Probe], job: str) -> list[FloodRate]:
    """Floods along all `probes` at once; returns the answered ones, in the order of `probes`."""
    found: dict[Probe, FloodRate] = {}
    deadline = time.monotonic() + FLOOD_S + ANSWER_S
    with contextlib.ExitStack() as sockets, selectors.DefaultSelector() as selector:
        flooding = 0
        for probe in probes:
            if (connection := open_connection(probe, sockets)) is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
                selector.register(connection, selectors.EVENT_WRITE, probe)
                flooding += 1
        while flooding and (left := deadline - time.monotonic()) > 0:
            for key, events in selector.select(left):
                ready: socket.socket = key.fileobj  # type: ignore[assignment]
                try:
                    if events & selectors.EVENT_READ:
                        found[key.data] = _answer(ready, key.data)
                    elif key.events == selectors.EVENT_WRITE:
                        _begin(ready, key.data, job)
                        selector.modify(
                            ready, selectors.EVENT_READ | selectors.EVENT_WRITE, key.data
                        )
                        continue
                    else:
                        ready.send(_PIECE)
                        continue
                except BlockingIOError:
                    continue
                except (OSError, struct.error):
                    pass  # not connected, or closed without an answer
                selector.unregister(ready)
                flooding -= 1
    return [found[probe] for probe in probes if probe in found]


def _begin(connection: socket.socket, probe: Probe, job: str) -> None:
    if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, "not connected")
    connection.send(hello(FLOOD, job, probe.source, probe.target))


def _answer(connection: socket.socket, probe: Probe) -> FloodRate:
    (bytes_per_s,) = RESULT.unpack(connection.recv(RESULT.size))
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (round_trip_us,) = _MIN_RTT.unpack_from(information, _MIN_RTT_AT)
    busy_us, *by_buffers_us = _BUSY.unpack_from(information, _BUSY_AT)
    limited = busy_us - sum(by_buffers_us) > _ALWAYS_BUSY * FLOOD_S * 1e6
    return FloodRate(probe, bytes_per_s / BYTES_PER_GBPS, round_trip_us * 1e-6, limited)
