"""Reads RDMA devices and the cards of interfaces from the kernel's tree; changes nothing.

The paths are those of the kernel's Documentation/ABI/stable/sysfs-class-infiniband and
testing/sysfs-bus-pci. What only a program can say is asked of it where it is installed.
"""

from __future__ import annotations

import ctypes.util
import ipaddress
import re
import resource
import shutil
import subprocess
from typing import TYPE_CHECKING

from torch_topoopt.links.hardware import (
    interface_folder,
    leading_number,
    pcie_gbps,
    physical_port,
    read,
    sysfs,
)
from torch_topoopt.tools.doctor.facts import CardFacts, GidFacts, RdmaFacts, RdmaPortFacts
from torch_topoopt.tools.doctor.flow_control import read_pause, read_pfc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_LIBRARIES = ("fabric", "ibverbs")
_NOBODY = "0000:0000:0000:0000:0000:0000:0000:0000"
_PROGRAM_S = 10.0
_PCI_ADDRESS = re.compile(r"([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]")


def read_rdma(interfaces: Sequence[str]) -> RdmaFacts:
    """The RDMA ports of this host, and the cards of `interfaces`."""
    ports = tuple(_ports())
    missing: tuple[str, ...] = ()
    if ports:
        missing = tuple(name for name in _LIBRARIES if ctypes.util.find_library(name) is None)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return RdmaFacts(
        ports=ports,
        cards=tuple(card for name in interfaces if (card := _card(name)) is not None),
        libraries_missing=missing,
        memlock_bytes=None if limit == resource.RLIM_INFINITY else limit,
    )


def _ports() -> Iterator[RdmaPortFacts]:
    for device in sorted(sysfs().glob("class/infiniband/*")):
        for folder in sorted(device.glob("ports/*"), key=lambda path: int(path.name)):
            gids = tuple(_gids(folder))
            beside = sorted(path.name for path in device.glob("device/net/*"))
            named = [gid.interface for gid in gids if gid.interface] + beside
            number = int(folder.name)
            yield RdmaPortFacts(
                device=device.name,
                port=number,
                interface=named[0] if named else None,
                state=read(folder / "state").rpartition(": ")[2],
                layer=read(folder / "link_layer"),
                gbps=leading_number(read(folder / "rate")),
                mtu=_active_mtu(device.name, number),
                gids=gids,
            )


def _gids(folder: Path) -> Iterator[GidFacts]:
    for path in sorted((folder / "gids").glob("*"), key=lambda path: int(path.name)):
        gid = read(path)
        if not gid or gid == _NOBODY:
            continue
        kind = read(folder / "gid_attrs/types" / path.name)
        interface = read(folder / "gid_attrs/ndevs" / path.name) or None
        yield GidFacts(int(path.name), kind, str(ipaddress.IPv6Address(gid)), interface)


def _active_mtu(device: str, port: int) -> int | None:
    """As ibv_devinfo says it: the tree does not have it."""
    program = shutil.which("ibv_devinfo")
    if program is None:
        return None
    try:
        said = subprocess.run(
            [program, "-d", device, "-i", str(port)],
            capture_output=True,
            text=True,
            timeout=_PROGRAM_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"active_mtu:\s*(\d+)", said)
    return int(found[1]) if found else None


def roce_mtu(interface_mtu: int) -> int:
    """Bytes of payload in a packet of RoCE v2 over an interface: a power of two, of 256 to 4096.

    Its headers take at most 96 bytes (`iboe_get_mtu` in the kernel's <rdma/ib_addr.h>).
    """
    room = interface_mtu - 96
    return next((size for size in (4096, 2048, 1024, 512) if size <= room), 256)


def _card(interface: str) -> CardFacts | None:
    """None for what is on no PCI card, and has no physical port."""
    folder = interface_folder(interface)
    port = physical_port(interface)
    if folder is None:
        return None
    device = (folder / "device").resolve()
    address = _PCI_ADDRESS.fullmatch(device.name)
    if address is None and port is None:
        return None
    speed, width = read(device / "current_link_speed"), read(device / "current_link_width")
    best = read(device / "max_link_speed"), read(device / "max_link_width")
    return CardFacts(
        interface=interface,
        physical_port=port,
        slot=address[1] if address else None,
        pcie_text=f"{speed.removesuffix(' PCIe')} x{width}" if speed and width else "",
        pcie_gbps=pcie_gbps(speed, width),
        pcie_best_gbps=pcie_gbps(*best),
        pfc=read_pfc(interface),
        pause=read_pause(interface),
        ecn=_ecn(folder),
        driver=(device / "driver").resolve().name if (device / "driver").exists() else "",
    )


def _ecn(folder: Path) -> bool | None:
    """Of the reacting side: NVIDIA's driver has a file per priority, others nothing."""
    enabled = [read(path) for path in folder.glob("ecn/roce_rp/enable/*")]
    return any(value == "1" for value in enabled) if enabled else None
