"""Asks the kernel of a switch, many at a time, over which interface packets would leave it.

As `ip route get TARGET from SOURCE iif INTERFACE ipproto tcp sport S dport D` does. Messages are
built and read here byte by byte, and sent many at once: with pyroute2 a question takes some ten
times as long. Layouts are those of <linux/rtnetlink.h>.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.fabric.netns.kernel import inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GET_ROUTE, _NEW_ROUTE, _ERROR = 26, 24, 2  # RTM_GETROUTE, RTM_NEWROUTE, NLMSG_ERROR
_REQUEST = 0x1
_HEADER, _ROUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI")  # nlmsghdr, rtmsg
_ATTRIBUTE = struct.Struct("=HH")
_TO, _FROM, _ARRIVES, _LEAVES = 1, 2, 3, 4  # RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF
_PROTOCOL, _SOURCE_PORT, _TARGET_PORT = 27, 28, 29  # RTA_IP_PROTO, RTA_SPORT, RTA_DPORT
_BATCH = 100  # answers have room in the socket, and a message in the kernel's buffer
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
    """Questions to the kernel of one namespace; to be used in a `with`."""

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
        """Of each the index of the interface that it leaves by; None where there is no route."""
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
        """Those that have come: number of the question, and what it asks for."""
        data = self._kernel.recv(1 << 17)
        while data:
            size, kind, _, number, _ = _HEADER.unpack_from(data)
            body, data = data[_HEADER.size : size], data[size + -size % 4 :]
            if kind == _ERROR:
                code = -struct.unpack_from("=i", body)[0]
                if code not in _UNREACHABLE:
                    raise FabricError(f"probing: the kernel refused: {os.strerror(code)}")
                yield number, None
            elif kind == _NEW_ROUTE:
                yield number, _leaves(body[_ROUTE.size :])


def _message(number: int, question: RouteQuestion) -> bytes:
    body = _ROUTE.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    body += _attribute(_TO, socket.inet_aton(question.target))
    body += _attribute(_FROM, socket.inet_aton(question.source))
    body += _attribute(_ARRIVES, struct.pack("=I", question.arrives))
    body += _attribute(_PROTOCOL, bytes([question.protocol]))
    body += _attribute(_SOURCE_PORT, struct.pack("!H", question.source_port))
    body += _attribute(_TARGET_PORT, struct.pack("!H", question.target_port))
    return _HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, number, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(size, kind) + value + b"\0" * (-size % 4)


def _leaves(data: bytes) -> int | None:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if kind == _LEAVES:
            return int(struct.unpack_from("=I", data, _ATTRIBUTE.size)[0])
        data = data[size + -size % 4 :]
    return None
