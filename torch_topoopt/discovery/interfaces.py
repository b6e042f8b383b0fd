"""The network interfaces of this machine, as the kernel lists them for this network namespace.

Addresses come from netlink and properties from ioctl: /sys/class/net may belong to another network
namespace than this process. An interface without an IPv4 address has the link-local IPv6 address
that the kernel gives every one (fabric/addresses.py).
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.discovery.hardware import is_device, physical_port
from torch_topoopt.fabric.addresses import is_link_local
from torch_topoopt.fabric.driver import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERFACES_VARIABLE = "TOPOOPT_INTERFACES"

# <linux/sockios.h>, <linux/wireless.h>, <linux/ethtool.h>, <linux/if.h>
_SIOCGIFFLAGS, _SIOCETHTOOL, _SIOCGIWNAME = 0x8913, 0x8946, 0x8B01
_ETHTOOL_GSET = 0x1
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
# <linux/netlink.h>, <linux/rtnetlink.h>, <linux/if_addr.h>, <linux/if_link.h>
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE, _RTM_NEWADDR, _RTM_GETADDR = 2, 3, 20, 22
_RTM_NEWLINK, _RTM_GETLINK, _IFLA_MASTER = 16, 18, 10
_IFA_F_DADFAILED, _IFA_F_TENTATIVE = 0x08, 0x40
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr
_UNKNOWN_MBPS = 0xFFFFFFFF


@dataclass(frozen=True)
class Interface:
    """An interface that can carry traffic. `gbps` is None where the kernel does not know it.

    `physical_port`: equal for the functions of one port of one card (hardware.py), which share its
    rate; None where it is not known. `is_card`: a network card with a cable says `gbps`; what
    virtual and wireless interfaces say is not their rate.
    """

    name: str
    address: str
    prefix_length: int
    gbps: float | None
    wireless: bool
    loopback: bool
    physical_port: str | None = None
    is_card: bool = False

    def shares_subnet(self, other: Interface) -> bool:
        """Whether they may be on one cable, by their addresses."""
        if is_link_local(self.address) or is_link_local(other.address):
            return is_link_local(self.address) and is_link_local(other.address)
        return self.subnet == other.subnet

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network((self.address, self.prefix_length), strict=False)


def list_interfaces(*, every_address: bool = False) -> list[Interface]:
    """Every interface that is up, by index; once for each of its IPv4 addresses.

    One that has none, and is no part of a bridge or bond, has its link-local IPv6 address.
    `every_address`: link-local addresses of all interfaces too.
    """
    addresses: dict[int, list[tuple[str, int]]] = {}
    for index, address, prefix_length in _addresses(socket.AF_INET):
        addresses.setdefault(index, []).append((address, prefix_length))
    for index, local in _link_local(set(addresses), every=every_address):
        addresses.setdefault(index, []).append(local)
    interfaces = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for index, name in sorted(socket.if_nameindex()):
            if index not in addresses or not is_up(control, name):
                continue
            gbps = speed_gbps(control, name)
            wireless = _is_wireless(control, index, name)
            loopback = is_loopback(control, name)
            port = physical_port(name)
            card = gbps is not None and not wireless and is_device(name)
            interfaces += [
                Interface(name, *address, gbps, wireless, loopback, port, card)
                for address in addresses[index]
            ]
    return interfaces


def _link_local(numbered: set[int], *, every: bool) -> Iterator[tuple[int, tuple[str, int]]]:
    """Interface index -> address and prefix length, where `numbered` have none; or `every` one."""
    names = dict(socket.if_nameindex())
    found = [one for one in _addresses(socket.AF_INET6) if one[0] in names]
    if not every:
        found = [one for one in found if one[0] not in numbered]
        parts = _parts() if found else set()
        found = [one for one in found if one[0] not in parts]
    seen: set[int] = set()
    for index, address, prefix_length in found:
        if every or index not in seen:  # one is enough
            seen.add(index)
            yield index, (f"{address}%{names[index]}", prefix_length)


def names_interfaces(wanted: str) -> bool:
    """Whether such a list names the interfaces to use, and not those to leave out."""
    return bool(wanted) and not wanted.startswith("^")


def select(interfaces: list[Interface], wanted: str) -> tuple[list[Interface], list[str]]:
    """The interfaces that a list like "eth0,ib" or "^docker,virbr" means, and unmatched names.

    Names are prefixes. With ^ in front, all but these are meant. Raises FabricError for a list that
    is no such list.
    """
    if not wanted:
        return interfaces, []
    exclude = wanted.startswith("^")
    names = [name.strip() for name in wanted.split(",")]
    if exclude:
        names = [name.removeprefix("^") for name in names]
    if any(not name or "^" in name for name in names):
        raise FabricError(
            f"{INTERFACES_VARIABLE}: {wanted!r} is not a list like eth0,eth1 (use these) or "
            "^docker,virbr (use all but these)"
        )
    chosen = [i for i in interfaces if i.name.startswith(tuple(names)) is not exclude]
    unmatched = [n for n in names if not any(i.name.startswith(n) for i in interfaces)]
    return chosen, [] if exclude else unmatched


def _addresses(family: int) -> Iterator[tuple[int, str, int]]:
    """(interface index, address, prefix length) of every IPv4, or link-local IPv6, address."""
    request = _ADDRESS.pack(family, 0, 0, 0, 0)
    for message in _dump(_RTM_GETADDR, _RTM_NEWADDR, request):
        of, prefix_length, flags, _, index = _ADDRESS.unpack_from(message)
        attributes = _attributes(message[_ADDRESS.size :])
        # On a point-to-point interface IFA_ADDRESS is the other end.
        own = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS, b""))
        if of != family or not own:
            continue
        text = socket.inet_ntop(family, own)
        if family == socket.AF_INET6:
            usable = not flags & (_IFA_F_TENTATIVE | _IFA_F_DADFAILED)
            if not usable or not ipaddress.IPv6Address(text).is_link_local:
                continue
        yield index, text, prefix_length


def _parts() -> set[int]:
    """The interfaces that are parts of another, of a bridge or a bond: they carry its traffic."""
    found = set()
    for message in _dump(_RTM_GETLINK, _RTM_NEWLINK, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        if _IFLA_MASTER in _attributes(message[_LINK.size :]):
            found.add(int(_LINK.unpack_from(message)[2]))
    return found


def _dump(asked: int, answered: int, request: bytes) -> Iterator[bytes]:
    """The bodies of the kernel's messages of kind `answered`."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        size = _HEADER.size + len(request)
        netlink.send(_HEADER.pack(size, asked, _NLM_F_REQUEST_DUMP, 1, 0) + request)
        while True:
            data = netlink.recv(1 << 16)
            while data:
                size, kind, _, _, _ = _HEADER.unpack_from(data)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise FabricError("the kernel does not list the addresses of this machine")
                if kind == answered:
                    yield data[_HEADER.size : size]
                data = data[_aligned(size) :]


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size:
            break
        attributes[kind] = data[at + _ATTRIBUTE.size : at + size]
        at += _aligned(size)
    return attributes


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def is_up(control: socket.socket, name: str) -> bool:
    """Whether the interface is switched on and its cable is in; `control` is any socket."""
    flags = _flags(control, name)
    return bool(flags & _IFF_UP and flags & _IFF_RUNNING)


def is_loopback(control: socket.socket, name: str) -> bool:
    return bool(_flags(control, name) & _IFF_LOOPBACK)


def _flags(control: socket.socket, name: str) -> int:
    try:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH14x", name.encode(), 0))
    except OSError:
        return 0  # it went away since it was listed
    return int(struct.unpack_from("H", answer, 16)[0])


def speed_gbps(control: socket.socket, name: str) -> float | None:
    """The rate of the interface, by its driver; `control` is any socket."""
    command = array.array("B", struct.pack("=I40x", _ETHTOOL_GSET))
    request = struct.pack("16sP8x", name.encode(), command.buffer_info()[0])
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:
        return None  # not an Ethernet-like interface, or its driver does not say
    low, high = struct.unpack_from("=H", command, 12)[0], struct.unpack_from("=H", command, 28)[0]
    mbps = low | high << 16
    return None if mbps in (0, 0xFFFF, _UNKNOWN_MBPS) else mbps / 1000


def _is_wireless(control: socket.socket, index: int, name: str) -> bool:
    folder = Path("/sys/class/net", name)
    with contextlib.suppress(OSError):
        if int((folder / "ifindex").read_text()) == index and (folder / "phy80211").exists():
            return True
    try:
        fcntl.ioctl(control, _SIOCGIWNAME, struct.pack("16s16x", name.encode()))
    except OSError:
        return False
    return True
