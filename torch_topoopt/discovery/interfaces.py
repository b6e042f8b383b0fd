"""The network interfaces of this machine, as the kernel lists them for this network namespace.

Addresses come from netlink (links/netlink.py) and properties from ioctl: /sys/class/net may belong
to another network namespace than this process. An interface without an IPv4 address has its IPv6
ones, at least the link-local address that the kernel gives every one (links/addresses.py).
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from torch_topoopt.links import netlink
from torch_topoopt.links.addresses import is_ipv6, is_link_local, share_subnet
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.hardware import is_device, physical_port

INTERFACES_VARIABLE = "TOPOOPT_INTERFACES"

# <linux/sockios.h>, <linux/wireless.h>, <linux/ethtool.h>, <linux/if.h>
_SIOCGIFFLAGS, _SIOCETHTOOL, _SIOCGIWNAME = 0x8913, 0x8946, 0x8B01
_ETHTOOL_GSET, _ETHTOOL_GLINK = 0x1, 0xA
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_UNKNOWN_MBPS = 0xFFFFFFFF


@dataclass(frozen=True)
class Interface:
    """An interface that can carry traffic. `gbps` is None where the kernel does not know it.

    `physical_port`: equal for the functions of one port of one card (links/hardware.py), which
    share its rate; None where it is not known. `is_card`: a network card with a cable says `gbps`;
    what virtual and wireless interfaces say is not their rate.
    """

    name: str
    address: str
    prefix_length: int
    gbps: float | None
    wireless: bool
    loopback: bool
    physical_port: str | None = None
    is_card: bool = False

    @property
    def with_prefix(self) -> str:
        """The address with its prefix length."""
        return f"{self.address}/{self.prefix_length}"

    def shares_subnet(self, other: Interface) -> bool:
        """Whether two interfaces may be on one cable, by their addresses."""
        return share_subnet(self.with_prefix, other.with_prefix)


def list_interfaces(*, every_address: bool = False) -> list[Interface]:
    """Every interface that is up, by index; once for each of its IPv4 addresses.

    One that has none, and is no part of a bridge or bond, has its IPv6 addresses, the link-local
    one last. `every_address`: IPv6 addresses of all interfaces too.
    """
    addresses: dict[int, list[tuple[str, int]]] = {}
    for own in netlink.addresses(socket.AF_INET):
        addresses.setdefault(own.index, []).append((own.address, own.prefix_length))
    for index, found in _ipv6_addresses().items():
        if every_address or index not in addresses:
            addresses.setdefault(index, []).extend(found)
    parts: set[int] | None = set() if every_address else None  # listed once one may be needed
    interfaces = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for index, name in sorted(socket.if_nameindex()):
            if index not in addresses or not is_up(control, name):
                continue
            if is_ipv6(addresses[index][0][0]):
                parts = netlink.parts_of_others() if parts is None else parts
                if index in parts:
                    continue
            if is_loopback(control, name):  # has no card, port or rate
                interfaces += [
                    Interface(name, *address, None, wireless=False, loopback=True)
                    for address in addresses[index]
                ]
                continue
            gbps = speed_gbps(control, name)
            wireless = _is_wireless(control, index, name)
            port = physical_port(name)
            card = gbps is not None and not wireless and is_device(name)
            interfaces += [
                Interface(name, *address, gbps, wireless, False, port, card)
                for address in addresses[index]
            ]
    return interfaces


def _ipv6_addresses() -> dict[int, list[tuple[str, int]]]:
    """Interface index -> addresses and prefix lengths: those that are routed, then a link-local
    one, with its interface."""
    found: dict[int, list[tuple[str, int]]] = {}
    local: dict[int, tuple[str, int]] = {}
    for own in netlink.addresses(socket.AF_INET6):
        if is_link_local(own.address):  # one is enough
            local.setdefault(own.index, (f"{own.address}%{own.interface}", own.prefix_length))
        else:
            found.setdefault(own.index, []).append((own.address, own.prefix_length))
    for index, address in local.items():
        found.setdefault(index, []).append(address)
    return found


def names_interfaces(wanted: str) -> bool:
    """Whether a list names the interfaces to use, rather than those to leave out."""
    return bool(wanted) and not wanted.startswith("^")


def select(interfaces: list[Interface], wanted: str) -> tuple[list[Interface], list[str]]:
    """The interfaces that a list like "eth0,ib" or "^docker,virbr" means, and unmatched names.

    Names are prefixes. A leading ^ selects all others. Raises FabricError for an invalid list.
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


def is_up(control: socket.socket, name: str) -> bool:
    """Whether the interface is switched on and its cable is in; `control` is any socket."""
    # Flags may be a second late (linkwatch). The kernel updates them when ethtool asks for it.
    _ask_driver(control, name, array.array("B", struct.pack("=II", _ETHTOOL_GLINK, 0)))
    flags = _flags(control, name)
    return bool(flags & _IFF_UP and flags & _IFF_RUNNING)


def is_loopback(control: socket.socket, name: str) -> bool:
    return bool(_flags(control, name) & _IFF_LOOPBACK)


def _flags(control: socket.socket, name: str) -> int:
    try:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH14x", name.encode(), 0))
    except OSError:
        return 0  # removed since it was listed
    return int(struct.unpack_from("H", answer, 16)[0])


def speed_gbps(control: socket.socket, name: str) -> float | None:
    """The rate of the interface, by its driver; `control` is any socket."""
    command = array.array("B", struct.pack("=I40x", _ETHTOOL_GSET))
    if not _ask_driver(control, name, command):
        return None
    low, high = struct.unpack_from("=H", command, 12)[0], struct.unpack_from("=H", command, 28)[0]
    mbps = low | high << 16
    return None if mbps in (0, 0xFFFF, _UNKNOWN_MBPS) else mbps / 1000


def _ask_driver(control: socket.socket, name: str, command: array.array[int]) -> bool:
    """Runs an ethtool command, which holds the answer then; False if the driver knows none."""
    request = struct.pack("16sP8x", name.encode(), command.buffer_info()[0])
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:
        return False
    return True


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
