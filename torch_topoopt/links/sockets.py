"""Opens the links of one server at the addresses of a Wiring, and verifies them from both ends.

Both ends of a connection prove their job, plan and link (handshake.py), so a crossed cable, a stale
process or another job is reported before the first byte of training.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from torch_topoopt.links.addresses import (
    family_of,
    far_endpoint,
    interface_of,
    own_endpoint,
    stay_on_cable,
)
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import Ends, Kind
from torch_topoopt.links.proof import Expected
from torch_topoopt.plan import BYTES_PER_GBPS, Link
from torch_topoopt.plan.units import format_gbps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch_topoopt.links.handshake import Handshakes
    from torch_topoopt.links.source_ports import SourcePorts
    from torch_topoopt.links.wiring import PortAddress, Wiring
    from torch_topoopt.plan import Plan

log = logging.getLogger("torch_topoopt")

_SO_MAX_PACING_RATE = getattr(socket, "SO_MAX_PACING_RATE", 47)
_TCP_NOTSENT_LOWAT = 25
# unsent bytes in the kernel per connection: enough to keep the link busy, yet so few that relayed
# and urgent frames wait only briefly
_UNSENT_S = 0.005
# duration of a segment on slow links; elsewhere _UNSENT_S: shorter ones cost processor time
_SLOW_GBPS = 0.025
_SLOW_SEGMENT_S = 0.0005
_LEAST_SEGMENT_BYTES = 256
_LOOPBACK_SEGMENT_BYTES = 32767  # maximum of TCP_MAXSEG
_LEAST_UNSENT_BYTES = 16 << 10
_MOST_UNSENT_BYTES = 2 << 20
# minimum for one of several connections of a link: less means many small writes
_LEAST_SHARED_BYTES = 512 << 10
# pending connections: no rank accepts during the meeting, and unauthenticated ones queue as well;
# net.core.somaxconn may lower it
LISTEN_QUEUE = 4096
_PORT_REFUSED = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)


@dataclass(frozen=True)
class OpenLink:
    """A verified connection. `link` starts at this server, unless it only receives.

    Only its two ends know `key`. `number` counts the connections of one link.
    """

    link: Link
    connection: socket.socket
    sends: bool
    key: bytes = field(default=b"", repr=False)
    number: int = 0


def describe(link: Link) -> str:
    return (
        f"link from server {link.source} port {link.source_port} "
        f"to server {link.target} port {link.target_port}"
    )


def connections(plan: Plan) -> Iterator[Link]:
    """The links that connect: all, or on a duplex cluster one of each cable's two.

    The source connects and the target listens.
    """
    for link in plan.network.links:
        if plan.cluster.ports == "simplex" or (link.source, link.source_port) < (
            link.target,
            link.target_port,
        ):
            yield link


def limit_rate(connection: socket.socket, gbps: float) -> None:
    """Limits what `connection` sends to `gbps`; raises FabricError if this kernel cannot."""
    rate = int(gbps * BYTES_PER_GBPS)
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("@Q", rate))
        taken = connection.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 8)
    except OSError as error:
        raise FabricError(
            f"this kernel cannot limit a link to {format_gbps(gbps)} "
            f"(SO_MAX_PACING_RATE: {error.strerror}); run without a bandwidth"
        ) from None
    if int.from_bytes(taken, "little") != rate:
        raise FabricError(f"this kernel did not take the rate of {format_gbps(gbps)}")


def _limit_segments(connection: socket.socket, gbps: float) -> None:
    """Limits the segments of a future connection to the bytes of 0.5 or 5 ms at its rate.

    Linux sends two segments before it paces, and ten at the start of a connection. Loopback's
    segments of 64 KB would arrive 130 ms early at 4 Mb/s.
    """
    seconds = _SLOW_SEGMENT_S if gbps < _SLOW_GBPS else _UNSENT_S
    wanted = round(gbps * BYTES_PER_GBPS * seconds)
    if wanted < _LOOPBACK_SEGMENT_BYTES:
        size = max(wanted, _LEAST_SEGMENT_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, size)


def listen(address: str, tcp_port: int, interface: str | None = None) -> socket.socket:
    """A socket that listens at `address` (port 0: any free port); raises OSError.

    Connections to a self-assigned address stay on its `interface`.
    """
    listener = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stay_on_cable(listener, address, interface)
        listener.bind(own_endpoint(address, tcp_port))
        listener.listen(LISTEN_QUEUE)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(near: PortAddress, far: PortAddress, tcp_port: int, timeout_s: float) -> socket.socket:
    """Connects from the address of `near` to `far`; raises OSError or TimeoutError."""
    connection = _bound(near)
    try:
        connection.settimeout(timeout_s)
        connection.connect(far_endpoint(far.address, tcp_port, near.address))
    except BaseException:
        connection.close()
        raise
    return connection


def start_connecting(
    near: PortAddress,
    far: PortAddress,
    tcp_port: int,
    source_port: int = 0,
    per_link: int = 1,
) -> socket.socket:
    """Like connect() without waiting: the socket is writable once connected or failed.

    `source_port` 0 lets the kernel choose. The link has `per_link` connections.
    """
    connection = _bound(near, source_port, per_link)
    connection.setblocking(False)
    try:
        started = connection.connect_ex(far_endpoint(far.address, tcp_port, near.address))
        if started not in (0, errno.EINPROGRESS):
            raise OSError(started, os.strerror(started))
    except BaseException:
        connection.close()
        raise
    return connection


def _bound(near: PortAddress, source_port: int = 0, per_link: int = 1) -> socket.socket:
    """An unconnected socket for a data connection from `near`."""
    connection = socket.socket(family_of(near.address), socket.SOCK_STREAM)
    try:
        stay_on_cable(connection, near.address, near.interface)
        if source_port:  # connections to several targets, or recently closed, share a port
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind(own_endpoint(near.address, source_port))
        if near.gbps is not None:
            _limit_segments(connection, near.gbps)
        prepare(connection, near, per_link)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: socket.socket, near: PortAddress, per_link: int = 1) -> None:
    """Sets the options of a data connection: no delay for small frames, and its part of the port's
    rate. Its link has `per_link` connections."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, unsent_bytes(near, per_link))
    if near.gbps is not None:
        limit_rate(connection, near.gbps)
    _leave_bbr(connection)


def prepare_forwarded(connection: socket.socket, gbps: float | None) -> None:
    """Sets the options of a connection that other hosts forward, over links of at most `gbps`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _LEAST_UNSENT_BYTES)
    if gbps is not None:
        limit_rate(connection, gbps)
    _leave_bbr(connection)


def unsent_bytes(near: PortAddress, per_link: int = 1) -> int:
    """The limit of unsent bytes in the kernel for a connection: some milliseconds of the port's
    rate, divided among the `per_link` connections of a fast link.

    The size of frames and of writes follows it (csrc/transport/tcp/link.cc).
    """
    whole = unsent_bytes_at(near.gbps or near.speed_gbps)
    return max(whole // per_link, min(whole, _LEAST_SHARED_BYTES))


def unsent_bytes_at(gbps: float | None) -> int:
    """`unsent_bytes` of a link with one connection and that rate; None: unknown."""
    if gbps is None:
        return _MOST_UNSENT_BYTES
    wanted = round(gbps * BYTES_PER_GBPS * _UNSENT_S)
    return min(max(wanted, _LEAST_UNSENT_BYTES), _MOST_UNSENT_BYTES)


def _leave_bbr(connection: socket.socket) -> None:
    """Replaces BBR, if it is the system's choice, by cubic, or by reno if cubic needs root.

    BBR limits bytes in flight to bandwidth times the shortest round trip, nearly nothing on a
    cable. Acknowledgements that wait behind data of the other direction would starve it.
    """
    system = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    if not system.startswith(b"bbr"):
        return
    for name in (b"cubic", b"reno"):
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return


def with_interface(port: PortAddress) -> PortAddress:
    """A port of this host with the interface that has its address, if the wiring names none."""
    return replace(port, interface=port.interface or interface_of(port.address))


PortPair: TypeAlias = "tuple[PortAddress, PortAddress]"  # of the source and of the target


class ServerPorts:
    """The ports of one server while its links are being opened; closes their listeners at the end.

    The steps are listen, connect, and prove (Handshakes.run). All servers finish each step before
    the next, so that no two wait for each other.
    """

    def __init__(
        self,
        plan: Plan,
        wiring: Wiring,
        server: int,
        listeners: Mapping[tuple[str, int], socket.socket],
        source_ports: SourcePorts | None = None,
        per_link: int = 1,
    ) -> None:
        """Takes ownership of the open `listeners`.

        Without `source_ports` the kernel chooses source ports. Every link has `per_link`
        connections.
        """
        self.per_link = per_link
        self._source_ports = source_ports
        self._wiring = wiring
        self._addresses = wiring.by_port()
        if wiring.forwarded:  # the hosts' routes choose interfaces, and moved circuits change them
            self._addresses = {
                end: replace(port, interface=None) for end, port in self._addresses.items()
            }
        self._duplex = plan.cluster.ports == "duplex"
        self._server = server
        links = list(connections(plan))
        self.outgoing = [link for link in links if link.source == server]
        self._incoming = [link for link in links if link.target == server]
        self._listeners = dict(listeners)
        self._expected: dict[tuple[str, int], list[Link]] = {}
        self._kept = False
        self._spares = [with_interface(port) for port in wiring.spares_of(server)]

    def __enter__(self) -> ServerPorts:
        return self

    def __exit__(self, *failure: object) -> None:
        if not self._kept:
            self.close()

    def keep(self) -> None:
        """Leaves the listeners open until close(), so that lost links can reconnect to them."""
        self._kept = True

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()

    def listen(self) -> None:
        """Ports of one interface share its listener; each connection identifies its link.

        A link may arrive at each spare port, too. Without its address, a spare port is unusable.
        """
        for link in self._incoming:
            with _naming(link):
                self._listen(self._addresses[link.target, link.target_port], [link])
        for spare in self._spares if self._incoming else ():
            try:
                self._listen(spare, self._incoming)
            except OSError as error:
                log.warning(
                    "spare port %d of server %d cannot be used: %s: %s",
                    *(spare.port, spare.server, spare.address, error.strerror or error),
                )

    def _listen(self, port: PortAddress, links: Iterable[Link]) -> None:
        where = (port.address, self._wiring.tcp_port_of(port))
        if where not in self._listeners:
            self._listeners[where] = listen(*where, port.interface)
        self._expected.setdefault(where, []).extend(links)

    def connect(self, handshakes: Handshakes) -> None:
        for link in self.outgoing:
            start = partial(self._start_connecting, link)
            for ends in self._connections_of(link):
                handshakes.call(ends, f"link from {ends}", start)

    def outgoing_connections(self) -> list[Ends]:
        """The connections of all `outgoing` links."""
        return [ends for link in self.outgoing for ends in self._connections_of(link)]

    def _connections_of(self, link: Link) -> list[Ends]:
        return [ends_of(link, number) for number in range(self.per_link)]

    def dial(
        self, ends: Ends, handshakes: Handshakes, timeout_s: float, between: PortPair | None = None
    ) -> None:
        """Starts one of outgoing_connections(); raises OSError if the kernel refuses at once.

        `between`: one of port_pairs() instead of the planned ports.
        """
        connection = self._start_connecting(link_of(ends), between)
        handshakes.dial(ends, f"link from {ends}", connection, timeout_s)

    def port_pairs(self, link: Link) -> list[PortPair]:
        """The ports between which an outgoing `link` may be open: the planned ones, both ends on
        spare ports, then one end."""
        near, *near_spares = (
            self._addresses[link.source, link.source_port],
            *self._spares,
        )
        far, *far_spares = (
            self._addresses[link.target, link.target_port],
            *self._wiring.spares_of(link.target),
        )
        return [
            (near, far),
            *itertools.product(near_spares, far_spares),
            *((spare, far) for spare in near_spares),
            *((near, spare) for spare in far_spares),
        ]

    def _start_connecting(self, link: Link, between: PortPair | None = None) -> socket.socket:
        near, far = between or self.port_pairs(link)[0]
        planned = near.port == link.source_port and far.port == link.target_port
        if self._source_ports is None or not planned:
            tcp_port = self._wiring.tcp_port_of(far)
            return start_connecting(near, far, tcp_port, per_link=self.per_link)
        return self._connect_from(self._source_ports, link, near, far)

    def _connect_from(
        self, chosen: SourcePorts, link: Link, near: PortAddress, far: PortAddress
    ) -> socket.socket:
        """Connects from the first free source port, else from one that the kernel chooses.

        A recently closed connection may still hold a port (TIME_WAIT).
        """
        refused: list[int] = []
        for source_port in (*chosen.ports_of(link), 0):
            try:
                connection = start_connecting(near, far, self._wiring.tcp_port_of(far), source_port)
            except OSError as error:
                if not source_port or error.errno not in _PORT_REFUSED:
                    raise
                refused.append(source_port)
            else:
                break
        limit = chosen.limit_gbps(link)
        if limit is not None:
            limit_rate(connection, limit if near.gbps is None else min(limit, near.gbps))
        chosen.taken(link, connection.getsockname()[1], refused)
        return connection

    def expect(self, handshakes: Handshakes) -> None:
        for where, links in self._expected.items():
            expected = [ends for link in links for ends in self._connections_of(link)]
            names = {ends: f"link from {ends}" for ends in expected}
            handshakes.expect(Expected(self._listeners[where], names, self._admit))

    def _admit(self, connection: socket.socket, ends: Ends) -> None:
        prepare(connection, self._addresses[ends.target, ends.target_port], self.per_link)

    def taken(
        self, proven: Mapping[Ends, socket.socket], keys: Mapping[Ends, bytes]
    ) -> list[OpenLink]:
        """The links among the `proven` connections, in the order of their ends."""
        return [
            OpenLink(link, connection, True, keys[ends], ends.number)
            if link.source == self._server
            else OpenLink(
                link.reverse if self._duplex else link,
                connection,
                self._duplex,
                keys[ends],
                ends.number,
            )
            for ends, connection in proven.items()
            if ends.kind is Kind.LINK
            for link in [link_of(ends)]
        ]


def ends_of(link: Link, number: int = 0) -> Ends:
    """The ends of a link's connection in a handshake."""
    return Ends(Kind.LINK, link.source, link.source_port, link.target, link.target_port, number)


def link_of(ends: Ends) -> Link:
    """The link of a connection, in the direction in which it is dialled."""
    return Link(ends.source, ends.source_port, ends.target, ends.target_port)


def time_left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


class _naming:  # noqa: N801 - reads as a word: with _naming(link)
    """Turns an OSError of a socket into a FabricError that names the link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise FabricError(f"{describe(self._link)}: {error.strerror or error}") from None
