"""Opens the links of one server at the addresses of a Wiring, and verifies them from both ends.

Both ends of a connection say which plan and which link they believe it is (the hello), so a crossed
cable, a stale process or another job is an error with a name before the first byte of training.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.plan import BYTES_PER_GBPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.fabric.wiring import PortAddress, Wiring
    from torch_topoopt.plan import Link, Plan

_SO_MAX_PACING_RATE = getattr(socket, "SO_MAX_PACING_RATE", 47)
_TCP_NOTSENT_LOWAT = 25
# What the kernel may hold back per connection: enough to keep the link busy, little enough that
# relayed and urgent frames do not wait behind megabytes of other traffic.
_UNSENT_BYTES = 128 << 10
_HELLO = struct.Struct("!8s16s4I")
_MAGIC = b"TOPOOPT1"


@dataclass(frozen=True)
class OpenLink:
    """A verified connection. `link` starts at this server, unless it only receives."""

    link: Link
    connection: socket.socket
    sends: bool


def describe(link: Link) -> str:
    return (
        f"link from server {link.source} port {link.source_port} "
        f"to server {link.target} port {link.target_port}"
    )


def connections(plan: Plan) -> Iterator[Link]:
    """One link per TCP connection: each link, or on a duplex cluster one of each cable's two.

    Its source connects and its target listens.
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
            f"this kernel cannot limit a link to {gbps:g} Gb/s "
            f"(SO_MAX_PACING_RATE: {error.strerror}); run without a bandwidth"
        ) from None
    if int.from_bytes(taken, "little") != rate:
        raise FabricError(f"this kernel did not take the rate of {gbps:g} Gb/s")


def listen(port: PortAddress, tcp_port: int) -> socket.socket:
    """A listening socket at the address of `port`; raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((port.address, tcp_port))
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(near: PortAddress, far: PortAddress, tcp_port: int, timeout_s: float) -> socket.socket:
    """Connects from the address of `near` to `far`; raises OSError or TimeoutError."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.bind((near.address, 0))
        connection.connect((far.address, tcp_port))
        prepare(connection, near)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: socket.socket, near: PortAddress) -> None:
    """Sets what every data connection has: no delay for small frames, and the port's rate."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    if near.gbps is not None:
        limit_rate(connection, near.gbps)


def send_hello(connection: socket.socket, plan_digest: str, link: Link) -> None:
    connection.sendall(
        _HELLO.pack(
            _MAGIC,
            plan_digest.encode("ascii"),
            link.source,
            link.source_port,
            link.target,
            link.target_port,
        )
    )


def check_hello(connection: socket.socket, plan_digest: str, link: Link) -> None:
    """Reads the other end's hello, which must name `link`; raises FabricError, OSError."""
    data = b""
    while len(data) < _HELLO.size:
        part = connection.recv(_HELLO.size - len(data))
        if not part:
            break
        data += part
    where = describe(link)
    if len(data) != _HELLO.size or not data.startswith(_MAGIC):
        raise FabricError(f"{where}: the other end is not a torch_topoopt port")
    _, digest, *ends = _HELLO.unpack(data)
    if digest.decode("ascii", "replace") != plan_digest:
        raise FabricError(f"{where}: the other end has plan {digest!r}, not {plan_digest}")
    if ends != [link.source, link.source_port, link.target, link.target_port]:
        raise FabricError(
            f"{where}: the other end says server {ends[0]} port {ends[1]} "
            f"to server {ends[2]} port {ends[3]}"
        )


def open_links(
    plan: Plan,
    wiring: Wiring,
    server: int,
    *,
    timeout_s: float,
    listening: Callable[[], None],
    wait_for: Callable[[int], None],
) -> list[OpenLink]:
    """Opens and verifies every link of `server`, in the order of the plan.

    `listening()` is called once this server accepts connections; `wait_for(other)` returns when
    server `other` does. Raises FabricError naming the link; nothing stays open then.
    """
    deadline = time.monotonic() + timeout_s
    ports = wiring.by_port()
    outgoing = [link for link in connections(plan) if link.source == server]
    incoming = [link for link in connections(plan) if link.target == server]
    opened: dict[Link, socket.socket] = {}
    with ExitStack() as on_failure, ExitStack() as listeners:
        accepting = {}
        for link in incoming:
            with _naming(link):
                listener = listen(ports[link.target, link.target_port], wiring.tcp_port)
                accepting[link] = listeners.enter_context(listener)
        listening()
        for link in outgoing:
            wait_for(link.target)
            with _naming(link):
                near, far = _ends(ports, link)
                connection = connect(near, far, wiring.tcp_port, _left(deadline))
                opened[link] = on_failure.enter_context(connection)
                send_hello(connection, wiring.plan_digest, link)
        for link, listener in accepting.items():
            with _naming(link):
                listener.settimeout(_left(deadline))
                connection = listener.accept()[0]
                opened[link] = on_failure.enter_context(connection)
                connection.settimeout(_left(deadline))
                prepare(connection, ports[link.target, link.target_port])
                check_hello(connection, wiring.plan_digest, link)
                send_hello(connection, wiring.plan_digest, link)
        for link in outgoing:
            with _naming(link):
                check_hello(opened[link], wiring.plan_digest, link)
        on_failure.pop_all()
    duplex = plan.cluster.ports == "duplex"
    return [
        OpenLink(link, connection, True)
        if link.source == server
        else OpenLink(link.reverse if duplex else link, connection, duplex)
        for link, connection in opened.items()
    ]


def _ends(ports: dict[tuple[int, int], PortAddress], link: Link) -> tuple[PortAddress, PortAddress]:
    return ports[link.source, link.source_port], ports[link.target, link.target_port]


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


class _naming:  # noqa: N801 - reads as a word: with _naming(link)
    """Turns what goes wrong with a socket into a FabricError that names the link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise FabricError(f"{describe(self._link)}: no answer in time") from None
        if isinstance(error, OSError):
            raise FabricError(f"{describe(self._link)}: {error.strerror or error}") from None
