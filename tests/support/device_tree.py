"""A kernel's tree of devices (/sys) with cards of real machines, as files that a test writes."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOBODY = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class Function:
    """A PCIe function with an interface and, if named, an RDMA device.

    `addresses` have their entries in the device's table, for RoCE v1 and v2 each.
    """

    pci: str
    interface: str
    rdma: str | None = None
    port_name: str = ""
    speed: str = "32.0 GT/s PCIe"
    width: int = 4
    best_speed: str = "32.0 GT/s PCIe"
    best_width: int = 4
    addresses: Sequence[str] = ()
    state: str = "4: ACTIVE"
    rate: str = "200 Gb/sec (4X HDR)"
    layer: str = "Ethernet"


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_card(root: Path, guid: str, functions: Sequence[Function]) -> None:
    """One card: its functions have the same `sys_image_guid`."""
    for function in functions:
        domain, bus = function.pci.split(":")[:2]
        device = root / f"devices/pci{domain}:{bus}" / function.pci
        write(device / "current_link_speed", function.speed)
        write(device / "current_link_width", function.width)
        write(device / "max_link_speed", function.best_speed)
        write(device / "max_link_width", function.best_width)
        interface = device / "net" / function.interface
        write(interface / "phys_port_name", function.port_name)
        (interface / "device").symlink_to(device)
        _link(root / "class/net" / function.interface, interface)
        if function.rdma is None:
            continue
        rdma = device / "infiniband" / function.rdma
        write(rdma / "sys_image_guid", guid)
        (rdma / "device").symlink_to(device)
        _link(root / "class/infiniband" / function.rdma, rdma)
        port = rdma / "ports/1"
        write(port / "state", function.state)
        write(port / "rate", function.rate)
        write(port / "link_layer", function.layer)
        kinds = ("IB/RoCE v1", "RoCE v2")
        entries = [(address, kind) for address in function.addresses for kind in kinds]
        for index, (address, kind) in enumerate(entries):
            write(port / f"gids/{index}", _gid(address))
            write(port / f"gid_attrs/types/{index}", kind)
            write(port / f"gid_attrs/ndevs/{index}", function.interface)
        write(port / f"gids/{len(entries)}", NOBODY)


def _link(at: Path, to: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(to)


def _gid(address: str) -> str:
    value = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(value, ipaddress.IPv4Address):
        value = ipaddress.IPv6Address(f"::ffff:{value}")
    return value.exploded


SPARK_PORTS = (
    ("enp1s0f0np0", "enP2p1s0f0np0"),
    ("enp1s0f1np1", "enP2p1s0f1np1"),
)


def add_spark(
    root: Path, guid: str = "fc4c:ea03:00f9:4230", addresses: dict[str, Sequence[str]] | None = None
) -> None:
    """The card of a DGX Spark: two ports of 200 Gb/s, each behind two PCIe links of four lanes.

    `addresses` are those of interfaces.
    """
    functions = []
    for port, names in enumerate(SPARK_PORTS):
        for name, domain, prefix in zip(
            names, ("0000", "0002"), ("rocep1", "roceP2p1"), strict=True
        ):
            functions.append(
                Function(
                    f"{domain}:01:00.{port}",
                    name,
                    f"{prefix}s0f{port}",
                    f"p{port}",
                    addresses=(addresses or {}).get(name, ()),
                )
            )
    add_card(root, guid, functions)
