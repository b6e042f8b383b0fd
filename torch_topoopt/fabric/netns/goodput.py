"""Measures TCP's goodput on every link of a fabric of namespaces, many links at a time.

Links without a common port share only the processor, so as many are measured together as this
machine can carry. A link out of bounds is measured again: a delayed process can make a link look
slow, but cannot make a slow link look right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import statistics
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.shaper import goodput_share
from torch_topoopt.links import sockets
from torch_topoopt.plan import BYTES_PER_GBPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch_topoopt.fabric.netns.state import FabricRecord
    from torch_topoopt.links.wiring import PortAddress, Wiring
    from torch_topoopt.plan import Link

TOLERANCE = 0.03

_AT_ONCE_GBPS = 0.3  # of all links that are measured together
_ATTEMPTS = 4
_WINDOW_S = 0.4  # goodput is the median over windows: one late process must not bend it
_WINDOWS = 5
_PIECE_BYTES = 64 << 10
_LIMIT_S = 10.0  # for everything but the windows


@dataclass(frozen=True)
class Goodput:
    """The goodput of one link. `expected_gbps` is its rate less the headers (None: the
    link has no rate); `error` is the reason for a failed measurement."""

    JSON_FIELDS: ClassVar = (
        "link.source", "link.source_port", "link.target", "link.target_port", "gbps",
        "expected_gbps", "share", "right", "error",
    )  # fmt: skip

    link: Link
    gbps: float
    expected_gbps: float | None
    error: str = ""

    @property
    def share(self) -> float | None:
        """Measured over expected goodput; None if no rate is expected."""
        return None if self.expected_gbps is None else self.gbps / self.expected_gbps

    @property
    def right(self) -> bool:
        if self.error:
            return False
        return self.share is None or abs(self.share - 1) <= TOLERANCE


def measure(
    record: FabricRecord,
    wiring: Wiring,
    todo: Sequence[Link],
    progress: Callable[[float, str], None] = lambda fraction, text: None,
) -> list[Goodput]:
    """Measures the links of `todo`, in their order."""
    results: dict[Link, Goodput] = {}
    left = list(todo)
    for attempt in range(_ATTEMPTS):
        rounds = together(left, record.gbps)
        for number, group in enumerate(rounds):
            what = "measuring" if attempt == 0 else "measuring again"
            progress(number / len(rounds), f"{what} {len(group)} of {len(left)} links")
            results |= _measure_group(group, record, wiring)
        left = [link for link in left if not results[link].right]
        if not left:
            break
    return [results[link] for link in todo]


def together(todo: Iterable[Link], gbps: float | None) -> list[list[Link]]:
    """Groups of links that share no port, each of no more than this machine carries at once.

    Links without a rate (None) are measured one by one.
    """
    most = 1 if gbps is None else max(1, int(_AT_ONCE_GBPS / gbps + 1e-9))
    groups: list[tuple[list[Link], set[tuple[int, int]]]] = []
    for link in todo:
        ends = {(link.source, link.source_port), (link.target, link.target_port)}
        for members, used in groups:
            if len(members) < most and not used & ends:
                members.append(link)
                used |= ends
                break
        else:
            groups.append(([link], set(ends)))
    return [members for members, _ in groups]


def _measure_group(group: list[Link], record: FabricRecord, wiring: Wiring) -> dict[Link, Goodput]:
    expected = None if record.gbps is None else record.gbps * goodput_share(record.mtu)
    ports = wiring.by_port()
    rates: dict[Link, float] = {}
    errors: dict[Link, str] = {}

    def run(link: Link) -> None:
        near, far = ports[link.source, link.source_port], ports[link.target, link.target_port]
        try:
            rates[link] = _measure_link(record, near, far)
        except OSError as error:
            errors[link] = "no answer" if isinstance(error, TimeoutError) else str(error)

    threads = [threading.Thread(target=run, args=(link,), daemon=True) for link in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        link: Goodput(link, rates.get(link, 0.0) / BYTES_PER_GBPS, expected, errors.get(link, ""))
        for link in group
    }


def _measure_link(record: FabricRecord, near: PortAddress, far: PortAddress) -> float:
    """Bytes per second from one port to the other; raises OSError."""
    unpaced = dataclasses.replace(near, gbps=None)  # measure the port, not the socket's limit
    source = record.layout.namespace(near.server)
    target = record.layout.namespace(far.server)
    with contextlib.ExitStack() as opened:
        # any free port: a job may listen on the fabric's own
        listener = netns_kernel.inside(target, lambda: sockets.listen(far.address, 0))
        opened.enter_context(listener)
        listener.settimeout(_LIMIT_S)
        tcp_port = listener.getsockname()[1]
        outgoing = netns_kernel.inside(
            source, lambda: sockets.connect(unpaced, far, tcp_port, _LIMIT_S)
        )
        opened.enter_context(outgoing)
        incoming = opened.enter_context(listener.accept()[0])
        incoming.settimeout(_LIMIT_S)
        sender = threading.Thread(target=_send, args=(outgoing,), daemon=True)
        sender.start()
        try:
            return _receive(incoming)
        finally:
            incoming.close()
            with contextlib.suppress(OSError):
                outgoing.shutdown(socket.SHUT_RDWR)
            sender.join(_LIMIT_S)


def _send(connection: socket.socket) -> None:
    piece = bytes(_PIECE_BYTES)
    with contextlib.suppress(OSError):  # the receiver ends it
        while True:
            connection.sendall(piece)


def _receive(connection: socket.socket) -> float:
    buffer = bytearray(4 * _PIECE_BYTES)
    windows = []
    for _ in range(1 + _WINDOWS):  # in the first, TCP looks for the rate
        received = 0
        begin = now = time.monotonic()
        while now < begin + _WINDOW_S:
            count = connection.recv_into(buffer)
            if count == 0:
                raise OSError("the connection ended")
            received += count
            now = time.monotonic()
        windows.append(received / (now - begin))
    return statistics.median(windows[1:])
