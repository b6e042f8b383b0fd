"""The addresses of this machine's interfaces, as the kernel lists them over netlink.

/sys/class/net may belong to another network namespace than this process; netlink does not.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# <linux/netlink.h>, <linux/rtnetlink.h>, <linux/if_addr.h>, <linux/if_link.h>
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE, _RTM_NEWADDR, _RTM_GETADDR = 2, 3, 20, 22
_RTM_NEWLINK, _RTM_GETLINK, _IFLA_MASTER = 16, 18, 10
_RTM_NEWROUTE, _RTM_GETROUTE, _RTA_OIF, _RTA_GATEWAY, _RTA_VIA = 24, 26, 4, 5, 18
_RTM_NEWNEIGH, _RTM_GETNEIGH, _NDA_LLADDR = 28, 30, 2
_IFA_F_TEMPORARY, _IFA_F_DADFAILED, _IFA_F_DEPRECATED, _IFA_F_TENTATIVE = 0x01, 0x08, 0x20, 0x40
_IFA_F_UNUSABLE = _IFA_F_TEMPORARY | _IFA_F_DADFAILED | _IFA_F_DEPRECATED | _IFA_F_TENTATIVE
_NUD_NOARP = 0x40  # an entry of the kernel's own, such as of a multicast address
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg
_NEIGHBOUR = struct.Struct("=B3xiHBB")  # struct ndmsg
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr, struct rtattr


@dataclass(frozen=True)
class OwnAddress:
    """An address of an interface; a link-local IPv6 one is without its zone here."""

    index: int
    interface: str
    address: str
    prefix_length: int


def addresses(family: int) -> Iterator[OwnAddress]:
    """All IPv4 addresses, or all IPv6 addresses that are neither temporary nor tentative."""
    names = dict(socket.if_nameindex())
    request = _ADDRESS.pack(family, 0, 0, 0, 0)
    for message in _dump(_RTM_GETADDR, _RTM_NEWADDR, request):
        of, prefix_length, flags, _, index = _ADDRESS.unpack_from(message)
        about = attributes(message[_ADDRESS.size :])
        # On a point-to-point interface IFA_ADDRESS is the other end.
        own = about.get(_IFA_LOCAL, about.get(_IFA_ADDRESS, b""))
        if of != family or not own or index not in names:
            continue
        if family == socket.AF_INET6 and flags & _IFA_F_UNUSABLE:
            continue
        yield OwnAddress(index, names[index], socket.inet_ntop(family, own), prefix_length)


def parts_of_others() -> set[int]:
    """Indexes of the interfaces that are members of a bridge or a bond."""
    found = set()
    for message in _dump(_RTM_GETLINK, _RTM_NEWLINK, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        if _IFLA_MASTER in attributes(message[_LINK.size :]):
            found.add(int(_LINK.unpack_from(message)[2]))
    return found


def gateways(interface: str) -> set[str]:
    """The addresses, without zone, of the gateways of routes over `interface`."""
    index = socket.if_nametoindex(interface)
    found = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
        for message in _dump(_RTM_GETROUTE, _RTM_NEWROUTE, request):
            about = attributes(message[_ROUTE.size :])
            if about.get(_RTA_OIF) == struct.pack("=I", index):
                router = about.get(_RTA_GATEWAY) or about.get(_RTA_VIA, b"")[2:]
                if len(router) in (4, 16):
                    of = socket.AF_INET if len(router) == 4 else socket.AF_INET6
                    found.add(socket.inet_ntop(of, router))
    return found


def neighbour_macs(interface: str) -> set[str]:
    """The MAC addresses of neighbours on `interface` that the kernel has learnt."""
    index = socket.if_nametoindex(interface)
    found = set()
    request = _NEIGHBOUR.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    for message in _dump(_RTM_GETNEIGH, _RTM_NEWNEIGH, request):
        family, of, state, _, _ = _NEIGHBOUR.unpack_from(message)
        mac = attributes(message[_NEIGHBOUR.size :]).get(_NDA_LLADDR, b"")
        known = family in (socket.AF_INET, socket.AF_INET6) and not state & _NUD_NOARP
        if of == index and known and len(mac) == 6:
            found.add(mac.hex(":"))
    return found


def _dump(asked: int, answered: int, request: bytes) -> Iterator[bytes]:
    """The bodies of the kernel's messages of kind `answered`; raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        size = HEADER.size + len(request)
        netlink.send(HEADER.pack(size, asked, _NLM_F_REQUEST_DUMP, 1, 0) + request)
        while True:
            data = netlink.recv(1 << 16)
            while data:
                size, kind, _, _, _ = HEADER.unpack_from(data)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError("the kernel does not list this machine's addresses and links")
                if kind == answered:
                    yield data[HEADER.size : size]
                data = data[_aligned(size) :]


def attributes(data: bytes) -> dict[int, bytes]:
    """Kind (without the flags "nested" and "byte order") -> value."""
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size:
            break
        found[kind & 0x3FFF] = data[at + _ATTRIBUTE.size : at + size]
        at += _aligned(size)
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """Encodes an attribute, padded; `attributes` decodes it."""
    size = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(size, kind) + value + bytes(_aligned(size) - size)


def _aligned(size: int) -> int:
    return (size + 3) & ~3
