"""Which interfaces are functions of one physical port: two links of one cable, not a switch.

A port of 200 Gb/s behind PCIe links of 100 Gb/s each shows as two PCIe functions, each with an
interface (and an RDMA device) of its own; a DGX Spark has two such ports. All functions of a port
receive what arrives at it, so announcements alone cannot tell them from a switch. What can:

- `phys_port_id` of the interface, if its driver says one;
- else the card and the port on it: `phys_switch_id` of the interface, or `sys_image_guid` of its
  RDMA device, together with `phys_port_name`.

A PCI address is no evidence: the ports of an ordinary card with two ports are two functions of one
slot, too.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

SYSFS_VARIABLE = "TOPOOPT_SYSFS"
_PORT_NAME = re.compile(r"p\d+(s\d+)?")  # Documentation/networking/switchdev.rst: of a port itself


def sysfs() -> Path:
    """The kernel's tree of devices: /sys, or in a container where the host's is mounted."""
    return Path(os.environ.get(SYSFS_VARIABLE) or "/sys")


def read(path: Path) -> str:
    """A file of the tree; "" where there is none, or its driver does not say."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def interface_folder(name: str) -> Path | None:
    """An interface in the tree; None where the tree is of another network namespace."""
    folder = sysfs() / "class/net" / name
    index = read(folder / "ifindex")
    try:
        here = socket.if_nametoindex(name)
    except OSError:
        return folder if folder.is_dir() and not index else None
    return folder if folder.is_dir() and index in ("", str(here)) else None


def is_device(name: str) -> bool:
    """Whether a device stands behind an interface; virtual ones (veth, bridge, bond) have none."""
    folder = interface_folder(name)
    return folder is not None and (folder / "device").exists()


def physical_port(name: str) -> str | None:
    """Equal for the interfaces that are functions of one port; None where nothing says it."""
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
