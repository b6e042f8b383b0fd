"""Finds the other end of each cable: every port announces its name and receives announcements.

Each interface sends small UDP datagrams to all hosts of its network only: IPv4 multicast to
224.0.0.1, which needs no matching addresses, and IPv6 multicast to ff02::1, which needs none. On a
direct cable exactly one other port receives them; on a switch several do.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Self

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.fabric.cluster.static_check import Senders

_ALL_HOSTS = "224.0.0.1"  # RFC 1112: this network only
_ALL_NODES = "ff02::1"  # RFC 4291
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)  # <linux/in.h>
_PKTINFO = struct.Struct("@i4s4s")  # struct in_pktinfo: interface, local address, header address
_PKTINFO6 = struct.Struct("@16sI")  # struct in6_pktinfo: address, interface
EVERY_S = 0.1  # between announcements
_MAGIC = "TOPONBR1"
_MOST_BYTES = 512
_MOST_SENDERS = 256  # on one network; a host there may send any names


class Neighbours:
    """Announces the ports of one server until it is closed, and keeps the senders that it receives.

    `ports` are names of ports and their interfaces. All hosts of one search use the same `token`
    and the same UDP port.
    """

    def __init__(self, token: str, udp_port: int, server: str, ports: Mapping[str, str]) -> None:
        """Raises FabricError if this host lacks an interface or cannot listen."""
        self._prefix = f"{_MAGIC} {token} "
        self._server = server
        self._udp_port = udp_port
        self._ports: dict[int, list[str]] = {}
        for port, interface in ports.items():
            try:
                self._ports.setdefault(socket.if_nametoindex(interface), []).append(port)
            except OSError:
                raise FabricError(f"{server}:{port}: there is no interface {interface}") from None
        self._senders: dict[str, set[tuple[str, str]]] = {port: set() for port in ports}
        self._rounds = 0
        self._changed = threading.Condition()
        self._wake, self._woken = socket.socketpair()
        self._sockets = self._open()
        self._thread = threading.Thread(target=self._run, name="topoopt-neighbours", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        if self._wake.fileno() < 0:
            return
        self._wake.close()
        self._thread.join()
        for end in (self._woken, *self._sockets):
            end.close()

    def senders(self) -> Senders:
        """Port -> the ports (server, port) whose announcements it has received so far."""
        with self._changed:
            return {port: frozenset(ends) for port, ends in self._senders.items()}

    @property
    def rounds(self) -> int:
        """How often all ports have been announced: a host that is busy does so less often."""
        return self._rounds

    def wait(self, enough: Callable[[Senders], bool], deadline: float) -> Senders:
        """The senders, as soon as they are `enough` or at `deadline` (monotonic seconds)."""
        while not enough(senders := self.senders()):
            with self._changed:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return self.senders()
        return senders

    def _open(self) -> list[socket.socket]:
        with contextlib.ExitStack() as on_failure:
            opened = []
            for family in (socket.AF_INET, socket.AF_INET6):
                try:
                    listener = on_failure.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                    self._prepare(listener)
                except OSError as error:
                    if family == socket.AF_INET6:
                        continue  # a host without IPv6
                    raise FabricError(
                        f"{self._server}: cannot listen on UDP port {self._udp_port}: "
                        f"{error.strerror}"
                    ) from None
                opened.append(listener)
            on_failure.pop_all()
        return opened

    def _prepare(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET:
            listener.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
            listener.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            listener.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
            listener.bind(("", self._udp_port))
            return
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        listener.bind(("::", self._udp_port))

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end in (self._woken, *self._sockets):
                selector.register(end, selectors.EVENT_READ)
            due = 0.0
            while True:
                if (now := time.monotonic()) >= due:
                    self._announce()
                    self._rounds += 1
                    due = now + EVERY_S
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if key.fileobj is self._woken:
                        return
                    self._read(key.fileobj)  # type: ignore[arg-type]

    def _announce(self) -> None:
        for index, ports in self._ports.items():
            for port in ports:
                text = f"{self._prefix}{self._server} {port}".encode()
                for sender in self._sockets:
                    # An interface may be down, or without addresses of one of the two kinds.
                    with contextlib.suppress(OSError):
                        self._send(sender, text, index)

    def _send(self, sender: socket.socket, text: bytes, index: int) -> None:
        if sender.family == socket.AF_INET:
            where = _PKTINFO.pack(index, bytes(4), bytes(4))
            ancillary = [(socket.IPPROTO_IP, _IP_PKTINFO, where)]
            sender.sendmsg([text], ancillary, 0, (_ALL_HOSTS, self._udp_port))
        else:
            sender.sendto(text, (_ALL_NODES, self._udp_port, 0, index))

    def _read(self, listener: socket.socket) -> None:
        try:
            data, ancillary, _, _ = listener.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(64))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                raise
            return
        index = _arrived_on(ancillary)
        text = data.decode("utf-8", "replace")
        words = text.removeprefix(self._prefix).split(" ")
        if not text.startswith(self._prefix) or len(words) != 2 or index not in self._ports:
            return
        with self._changed:
            for port in self._ports[index]:
                if len(self._senders[port]) < _MOST_SENDERS:
                    self._senders[port].add((words[0], words[1]))
            self._changed.notify_all()


def _arrived_on(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The index of the interface by which a datagram came; 0 if the kernel does not say."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            return int(_PKTINFO.unpack_from(data)[0])
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            return int(_PKTINFO6.unpack_from(data)[1])
    return 0
