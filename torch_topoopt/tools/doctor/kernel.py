"""Reads what the kernel says about this host (this network namespace); changes nothing."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Any

from torch_topoopt.discovery.interfaces import list_interfaces
from torch_topoopt.links.addresses import is_ipv6
from torch_topoopt.tools.doctor.facts import InterfaceFacts, KernelFacts

_NET = Path("/proc/sys/net")
_CPUS = Path("/sys/devices/system/cpu")
# <linux/sockios.h>, <linux/ethtool.h>, <linux/if.h>
_SIOCETHTOOL = 0x8946
_ETHTOOL_GTSO, _ETHTOOL_GFLAGS, _ETHTOOL_GGRO = 0x1E, 0x25, 0x2B
_FLAG_LRO = 1 << 15
_IFF_UP, _IFF_LOOPBACK, _IFF_LOWER_UP = 0x1, 0x8, 0x10000


def read_interfaces() -> tuple[InterfaceFacts, ...]:
    """All interfaces but loopback, by index."""
    from pyroute2 import IPRoute

    speeds = {interface.name: interface.gbps for interface in list_interfaces()}
    with IPRoute() as route:
        links: list[Any] = list(route.get_links())
        addresses: dict[int, list[str]] = {}
        for entry in route.get_addr(family=socket.AF_INET):
            own = entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS")
            addresses.setdefault(entry["index"], []).append(f"{own}/{entry['prefixlen']}")
    # What came or went while this host was read is left out.
    indexes = {link.get_attr("IFLA_IFNAME"): link["index"] for link in links}
    for one in list_interfaces(every_address=True):
        if is_ipv6(one.address) and one.name in indexes:
            addresses.setdefault(indexes[one.name], []).append(one.with_prefix)
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for link in sorted(links, key=lambda one: int(one["index"])):
            flags, name = int(link["flags"]), str(link.get_attr("IFLA_IFNAME"))
            if flags & _IFF_LOOPBACK:
                continue
            lro = _ethtool(control, name, _ETHTOOL_GFLAGS)
            tso, gro = (_ethtool(control, name, what) for what in (_ETHTOOL_GTSO, _ETHTOOL_GGRO))
            found.append(
                InterfaceFacts(
                    name=name,
                    mac=link.get_attr("IFLA_ADDRESS"),
                    mtu=int(link.get_attr("IFLA_MTU")),
                    up=bool(flags & _IFF_UP),
                    carrier=bool(flags & _IFF_LOWER_UP),
                    addresses=tuple(addresses.get(link["index"], ())),
                    gbps=speeds.get(name),
                    rp_filter=_strictest(name, "rp_filter"),
                    forwarding=_number(f"ipv4/conf/{name}/forwarding") == 1,
                    arp_ignore=_strictest(name, "arp_ignore"),
                    arp_announce=_strictest(name, "arp_announce"),
                    lro=None if lro is None else bool(lro & _FLAG_LRO),
                    tso=None if tso is None else bool(tso),
                    gro=None if gro is None else bool(gro),
                )
            )
    return tuple(found)


def read_kernel() -> KernelFacts:
    governors = set()
    for path in _CPUS.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        governors.add(_text(path))
    return KernelFacts(
        rmem_max=_number("core/rmem_max"),
        wmem_max=_number("core/wmem_max"),
        tcp_rmem_max=_number("ipv4/tcp_rmem"),
        tcp_wmem_max=_number("ipv4/tcp_wmem"),
        # For root, access() says yes to every file that exists; its mode says what sysctl allows.
        core_writable=_writable("core/rmem_max"),
        congestion=_text(_NET / "ipv4/tcp_congestion_control"),
        governors=tuple(sorted(governors - {""})),
    )


def is_root() -> bool:
    return os.geteuid() == 0


def _writable(name: str) -> bool:
    try:
        return bool((_NET / name).stat().st_mode & 0o200)
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # this kernel, or this namespace, does not have it


def _number(name: str) -> int | None:
    """The last number of a setting, None where there is none."""
    words = _text(_NET / name).split()
    return int(words[-1]) if words else None


def _strictest(interface: str, setting: str) -> int:
    values = (_number(f"ipv4/conf/{where}/{setting}") for where in ("all", interface))
    return max(value or 0 for value in values)


def _ethtool(control: socket.socket, name: str, command: int) -> int | None:
    value = array.array("B", struct.pack("=II", command, 0))
    request = struct.pack("16sP8x", name.encode(), value.buffer_info()[0])
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:
        return None  # its driver does not say
    return int(struct.unpack("=II", value)[1])
