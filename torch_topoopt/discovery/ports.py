"""The ports of this machine: every interface that could have a cable, and its hardware facts.

`interfaces` lists those that can carry traffic now. This module adds interfaces without an address,
and MAC address, MTU and physical port.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from torch_topoopt.discovery import interfaces
from torch_topoopt.links import hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

# <linux/sockios.h>, <linux/if_arp.h>, <linux/if.h>
_SIOCGIFMTU, _SIOCGIFHWADDR = 0x8921, 0x8927
_ARPHRD_ETHER = 1


@dataclass(frozen=True)
class PortFacts:
    """An interface that is up. `mtu` in bytes; `physical_port` as links/hardware.py says.

    `addresses` have their prefix lengths: IPv4, or where it has none, IPv6 (interfaces.py).
    """

    interface: str
    addresses: tuple[str, ...]
    gbps: float | None
    mtu: int | None
    mac: str | None
    physical_port: str | None = None

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Decodes the JSON of `vars`; raises TypeError for anything else."""
        return cls(**{**plain, "addresses": tuple(plain["addresses"])})


def list_ports() -> list[PortFacts]:
    """All interfaces of this network namespace that are up, loopback left out, by index."""
    addresses: dict[str, list[str]] = {}
    for found in interfaces.list_interfaces():
        addresses.setdefault(found.name, []).append(found.with_prefix)
    ports = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in sorted(socket.if_nameindex()):
            if not interfaces.is_up(control, name) or interfaces.is_loopback(control, name):
                continue
            ports.append(
                PortFacts(
                    name,
                    tuple(addresses.get(name, ())),
                    interfaces.speed_gbps(control, name),
                    _mtu(control, name),
                    _mac(control, name),
                    hardware.physical_port(name),
                )
            )
    return ports


def _mtu(control: socket.socket, name: str) -> int | None:
    try:
        answer = fcntl.ioctl(control, _SIOCGIFMTU, struct.pack("16si20x", name.encode(), 0))
    except OSError:
        return None  # removed since it was listed
    return int(struct.unpack_from("i", answer, 16)[0])


def _mac(control: socket.socket, name: str) -> str | None:
    """The MAC address; None if it is no Ethernet (InfiniBand, tunnels)."""
    try:
        answer = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
    except OSError:
        return None
    if struct.unpack_from("H", answer, 16)[0] != _ARPHRD_ETHER:
        return None
    return ":".join(f"{byte:02x}" for byte in answer[18:24])
