"""Traffic-control filters at the ingress of an interface that redirect frames to another one.

Messages are built and read here byte by byte: pyroute2 knows neither `flower` nor a `u32` match on
the Ethernet header, which lies before the offset that u32 counts from. Layouts are those of
<linux/pkt_cls.h>, <linux/pkt_sched.h> and <linux/tc_act/tc_mirred.h>.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns.kernel import inside, scratch_interface
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INGRESS = 0xFFFFFFF2  # parent of filters for arriving frames, once there is a clsact
CLASSIFIERS = ("flower", "u32")  # in the order of preference

_ADD, _DELETE = 44, 45  # RTM_NEWTFILTER, RTM_DELTFILTER
_GET_LINK, _GET_FILTER = 18, 46  # RTM_GETLINK, RTM_GETTFILTER
_REQUEST, _ACK, _EXCLUSIVE, _CREATE, _LIST = 0x1, 0x4, 0x200, 0x400, 0x300
_ERROR, _DONE = 2, 3  # NLMSG_ERROR, NLMSG_DONE
_HEADER, _TC = struct.Struct("=IHHII"), struct.Struct("=BBHiIII")
_LINK, _LINK_NAME = struct.Struct("=BxHiII"), 3  # struct ifinfomsg, IFLA_IFNAME
_U32_CLASS, _U32_ACTIONS = 1, 7  # TCA_U32_CLASSID, TCA_U32_ACT
_MIRRED = struct.Struct("=IIiiiiI")  # struct tc_mirred
_NESTED = 0x8000
_KIND, _OPTIONS = 1, 2
_ETH_P_ALL = 0x0003
_STOLEN, _EGRESS_REDIRECT = 4, 1


@dataclass(frozen=True)
class Rule:
    """A frame that arrives at interface `ingress` leaves through `egress`; None: no action yet.

    `mac` restricts the rule to frames with that destination. `tag` is the owner's, for finding the
    rule again; `priority` orders the rules of an interface and is unique there.
    """

    ingress: int
    egress: int | None
    tag: int
    priority: int = 1
    mac: str | None = None


class FilterSocket:
    """Reads and changes filters of one namespace, one after the other; close it in the end.

    Reading takes a tenth of the processor time that pyroute2 needs for the same.
    """

    def __init__(self, namespace: str) -> None:
        def open_socket() -> socket.socket:
            return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

        self._kernel = inside(namespace, open_socket)
        self._kernel.settimeout(5.0)

    def __enter__(self) -> FilterSocket:
        return self

    def __exit__(self, *failure: object) -> None:
        self._kernel.close()

    def add(self, rule: Rule, classifier: str = "u32") -> None:
        """Adds a rule; raises the kernel's OSError (ENOENT: no such classifier)."""
        options = _flower(rule) if classifier == "flower" else _u32(rule)
        body = _tc_message(rule.ingress, rule.priority)
        body += _attribute(_KIND, classifier.encode() + b"\0")
        self._request(_ADD, _CREATE | _EXCLUSIVE, body + _attribute(_OPTIONS | _NESTED, options))

    def delete(self, ingress: int, priority: int = 1) -> None:
        """Removes the rule of that priority; raises OSError (ENOENT: there is none)."""
        self._request(_DELETE, 0, _tc_message(ingress, priority))

    def rules(self, ingress: int) -> list[Rule]:
        """The u32 rules of an interface, without their MAC addresses; raises OSError."""
        found = []
        body = _TC.pack(socket.AF_UNSPEC, 0, 0, ingress, 0, INGRESS, 0)
        for message in self._dump(_GET_FILTER, body):
            info = _TC.unpack_from(message)[-1]
            options = _attributes(_attributes(message[_TC.size :]).get(_OPTIONS, b""))
            if _U32_CLASS in options:
                (tag,) = struct.unpack("=I", options[_U32_CLASS])
                found.append(Rule(ingress, _target(options), tag, info >> 16))
        return found

    def interfaces(self) -> dict[str, tuple[int, int]]:
        """Name -> index and flags (IFF_UP and the like); raises OSError."""
        found = {}
        for message in self._dump(_GET_LINK, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
            _, _, index, flags, _ = _LINK.unpack_from(message)
            name = _attributes(message[_LINK.size :])[_LINK_NAME].rstrip(b"\0").decode()
            found[name] = (index, flags)
        return found

    def _dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """The messages of the kernel's answer to a list request, without headers."""
        size = _HEADER.size + len(body)
        self._kernel.send(_HEADER.pack(size, kind, _REQUEST | _LIST, 1, 0) + body)
        while True:
            data = self._kernel.recv(1 << 17)
            while data:
                size, answered = _HEADER.unpack_from(data)[:2]
                message, data = data[_HEADER.size : size], data[size + -size % 4 :]
                if answered == _DONE:
                    return
                if answered == _ERROR:
                    (code,) = struct.unpack_from("=i", message)
                    raise OSError(-code, os.strerror(-code))
                yield message

    def _request(self, kind: int, flags: int, body: bytes) -> None:
        """Sends one request and waits for its acknowledgement."""
        size = _HEADER.size + len(body)
        self._kernel.send(_HEADER.pack(size, kind, _REQUEST | _ACK | flags, 1, 0) + body)
        answer = self._kernel.recv(65536)
        answered = _HEADER.unpack_from(answer)[1]
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if answered != _ERROR or code > 0:
            raise FabricError(f"netns: the kernel answered a filter with message {answered}")
        if code:
            raise OSError(-code, os.strerror(-code))


def add(namespace: str, rule: Rule, classifier: str = "u32") -> None:
    """Adds one rule; raises as FilterSocket.add does."""
    with FilterSocket(namespace) as filters:
        filters.add(rule, classifier)


def _target(options: dict[int, bytes]) -> int | None:
    """The interface to which a u32 rule's first action redirects, if it has one."""
    action = _attributes(_attributes(options.get(_U32_ACTIONS, b"")).get(1, b""))
    parameters = _attributes(action.get(2, b"")).get(2)
    if parameters is None:
        return None
    return int(_MIRRED.unpack_from(parameters)[-1])


def _attributes(data: bytes) -> dict[int, bytes]:
    """Type -> value, of attributes one after the other."""
    found = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        found[kind & ~_NESTED] = data[4:size]
        data = data[size + -size % 4 :]
    return found


def _u32(rule: Rule) -> bytes:
    keys = [(0, 0, 0)]  # mask, value, offset from the network header
    if rule.mac is not None:
        mac = _mac(rule.mac)
        keys = [
            (0x0000FFFF, int.from_bytes(mac[:2]), -16),
            (0xFFFFFFFF, int.from_bytes(mac[2:]), -12),
        ]
    selector = struct.pack("=BBBxHHhhI", 1, 0, len(keys), 0, 0, 0, 0, 0)
    for mask, value, offset in keys:
        selector += struct.pack("!II", mask, value) + struct.pack("=ii", offset, 0)
    options = _attribute(1, struct.pack("=I", rule.tag)) + _attribute(5, selector)
    return options + (_attribute(7 | _NESTED, _redirect(rule.egress)) if rule.egress else b"")


def _flower(rule: Rule) -> bytes:
    options = _attribute(1, struct.pack("=I", rule.tag))
    if rule.mac is not None:
        options += _attribute(4, _mac(rule.mac)) + _attribute(5, b"\xff" * 6)
    return options + (_attribute(3 | _NESTED, _redirect(rule.egress)) if rule.egress else b"")


def _redirect(egress: int | None) -> bytes:
    parameters = _MIRRED.pack(0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, egress)
    action = _attribute(1, b"mirred\0") + _attribute(2 | _NESTED, _attribute(2, parameters))
    return _attribute(1 | _NESTED, action)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _tc_message(index: int, priority: int) -> bytes:
    info = priority << 16 | socket.htons(_ETH_P_ALL)
    return _TC.pack(socket.AF_UNSPEC, 0, 0, index, 0, INGRESS, info)


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + b"\0" * (-size % 4)


def choose(choice: Sequence[str] = CLASSIFIERS) -> str:
    """The first classifier by which this kernel redirects frames of one MAC address; tries them.

    Raises FabricError, naming all attempts, if there is none.
    """
    tried = []
    with scratch_interface() as (route, namespace, index):
        route.tc("add", "clsact", index=index)
        for classifier in choice:
            try:
                add(namespace, Rule(index, index, 0, mac="02:00:00:00:00:01"), classifier)
            except OSError as error:
                tried.append(f"{classifier}: {error.strerror}")
            else:
                return classifier
    raise FabricError(
        f"netns: this kernel cannot classify frames by MAC address ({'; '.join(tried)}); load "
        "the modules cls_flower or cls_u32, and act_mirred, or forward by routes alone"
    )
