"""Queries the kernel of a switch, in batches, for the interface by which packets would leave it.

Equivalent to `ip route get TARGET from SOURCE iif INTERFACE ipproto tcp sport S dport D`. Messages
are encoded here and sent in batches: with pyroute2 a query takes about ten times as long. Layouts
are those of <linux/rtnetlink.h>.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns.kernel import inside
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.netlink import HEADER, attribute, attributes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GET_ROUTE, _NEW_ROUTE, _ERROR = 26, 24, 2  # RTM_GETROUTE, RTM_NEWROUTE, NLMSG_ERROR
_REQUEST = 0x1
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg
_TO, _FROM, _ARRIVES, _LEAVES = 1, 2, 3, 4  # RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF
_PROTOCOL, _SOURCE_PORT, _TARGET_PORT = 27, 28, 29  # RTA_IP_PROTO, RTA_SPORT, RTA_DPORT
_BATCH = 100  # fits into the socket's and the kernel's buffers
_LIMIT_S = 5.0
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL)


@dataclass(frozen=True)
class RouteQuestion:
    """A packet that arrives at the interface of index `arrives`."""

    arrives: int
    source: str
    target: str
    protocol: int
    source_port: int
    target_port: int


class RouteQuestions:
    """Queries to the kernel of one namespace; use it in a `with`."""

    def __init__(self, namespace: str) -> None:
        def open_socket() -> socket.socket:
            return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

        self._kernel = inside(namespace, open_socket)
        self._kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._kernel.settimeout(_LIMIT_S)

    def __enter__(self) -> RouteQuestions:
        return self

    def __exit__(self, *_: object) -> None:
        self._kernel.close()

    def ask(self, questions: Sequence[RouteQuestion]) -> list[int | None]:
        """The index of each packet's outgoing interface; None without a route."""
        answers: list[int | None] = []
        for begin in range(0, len(questions), _BATCH):
            batch = questions[begin : begin + _BATCH]
            self._kernel.send(b"".join(_message(i, each) for i, each in enumerate(batch)))
            found: dict[int, int | None] = {}
            while len(found) < len(batch):
                found.update(self._answers())
            answers += [found[i] for i in range(len(batch))]
        return answers

    def _answers(self) -> Iterator[tuple[int, int | None]]:
        """The received answers: number of the query, and its result."""
        data = self._kernel.recv(1 << 17)
        while data:
            size, kind, _, number, _ = HEADER.unpack_from(data)
            body, data = data[HEADER.size : size], data[size + -size % 4 :]
            if kind == _ERROR:
                code = -struct.unpack_from("=i", body)[0]
                if code not in _UNREACHABLE:
                    raise FabricError(f"probing: the kernel refused: {os.strerror(code)}")
                yield number, None
            elif kind == _NEW_ROUTE:
                leaves = attributes(body[_ROUTE.size :]).get(_LEAVES)
                yield number, None if leaves is None else int.from_bytes(leaves, sys.byteorder)


def _message(number: int, question: RouteQuestion) -> bytes:
    body = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    body += attribute(_TO, socket.inet_aton(question.target))
    body += attribute(_FROM, socket.inet_aton(question.source))
    body += attribute(_ARRIVES, struct.pack("=I", question.arrives))
    body += attribute(_PROTOCOL, bytes([question.protocol]))
    body += attribute(_SOURCE_PORT, struct.pack("!H", question.source_port))
    body += attribute(_TARGET_PORT, struct.pack("!H", question.target_port))
    return HEADER.pack(HEADER.size + len(body), _GET_ROUTE, _REQUEST, number, 0) + body
