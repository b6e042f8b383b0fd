"""Finds interfaces that are functions of one physical port: two links of one cable, not a switch.

A port of 200 Gb/s behind two PCIe links of 100 Gb/s appears as two PCIe functions, each with an
interface (and an RDMA device); a DGX Spark has two such ports. All functions of a port receive its
packets, so announcements alone look as behind a switch. The evidence is:

- `phys_port_id` of the interface, if its driver sets one;
- else the card and the port on it: `phys_switch_id` of the interface, or `sys_image_guid` of its
  RDMA device, together with `phys_port_name`.

A PCI address is no evidence: the two ports of an ordinary card are functions of one slot, too.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

SYSFS_VARIABLE = "TOPOOPT_SYSFS"
_PORT_NAME = re.compile(r"p\d+(s\d+)?")  # Documentation/networking/switchdev.rst: of a port itself

# PCIe: giga transfers per second -> part of the bits that is data (its generations 1 to 6)
_PCIE_DATA = {2.5: 8 / 10, 5.0: 8 / 10, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130}
_PCIE_FLIT = 242 / 256


def sysfs() -> Path:
    """The kernel's tree of devices: /sys, or in a container where the host's is mounted."""
    return Path(os.environ.get(SYSFS_VARIABLE) or "/sys")


def read(path: Path) -> str:
    """The text of a file of the tree; "" if it is missing or cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def interface_folder(name: str) -> Path | None:
    """The folder of an interface; None if the tree belongs to another network namespace."""
    folder = sysfs() / "class/net" / name
    index = read(folder / "ifindex")
    try:
        here = socket.if_nametoindex(name)
    except OSError:
        return folder if folder.is_dir() and not index else None
    return folder if folder.is_dir() and index in ("", str(here)) else None


def is_device(name: str) -> bool:
    """Whether an interface has a device; virtual ones (veth, bridge, bond) have none."""
    folder = interface_folder(name)
    return folder is not None and (folder / "device").exists()


def physical_port(name: str) -> str | None:
    """A key equal for all functions of one port; None if not known."""
    folder = interface_folder(name)
    if folder is None:
        return None
    if port := read(folder / "phys_port_id"):
        return f"port {port}"
    port = read(folder / "phys_port_name")
    if not _PORT_NAME.fullmatch(port):
        return None
    devices = sorted(folder.glob("device/infiniband/*/sys_image_guid"))
    card = read(folder / "phys_switch_id") or next(filter(None, map(read, devices)), "")
    return f"card {card} {port}" if card else None


def pcie_gbps(speed: str, width: str) -> float | None:
    """Gb/s each way, of "32.0 GT/s PCIe" and "4"; None where the kernel does not know."""
    rate = leading_number(speed)
    if not rate or not width.isdigit() or int(width) == 0:
        return None
    return rate * int(width) * _PCIE_DATA.get(rate, _PCIE_FLIT)


def leading_number(text: str) -> float | None:
    """The number that a text begins with."""
    found = re.match(r"\d+(\.\d+)?", text)
    return float(found[0]) if found else None
