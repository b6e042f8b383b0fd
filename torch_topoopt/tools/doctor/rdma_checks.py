"""Checks of RDMA devices and of the cards that carry links. Pure functions: Site -> findings."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from torch_topoopt.links.addresses import is_ipv6, without_zone
from torch_topoopt.plan.units import format_gbps
from torch_topoopt.tools.doctor.findings import Finding, Site
from torch_topoopt.tools.doctor.rdma import roce_mtu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.tools.doctor.facts import InterfaceFacts, RdmaPortFacts

ROCE_V2 = "RoCE v2"
_BEST_PAYLOAD_BYTES = 4096
_JUMBO_BYTES = 9000
_ENOUGH_MEMORY_BYTES = 64 << 20  # what all links of a rank have registered at once, and more


def check_rdma_ports(site: Site) -> Iterator[Finding]:
    """Does the RDMA port of each interface work, with an entry for its address?"""
    for server, where, interface, port in _rdma_interfaces(site):
        if port.state != "ACTIVE":
            yield Finding(
                *("warning", "rdma-state", server, where),
                what=f"port {port.port} of the RDMA device {port.device} is "
                f"{port.state or 'in an unknown state'}",
                why="links over it use TCP, which costs processor time",
                advice="see that the cable is in and the interface is up at both ends",
            )
        elif port.layer == "Ethernet" and roce_index(port, interface) is None:
            addresses = ", ".join(interface.ips) or "none"
            yield Finding(
                *("warning", "rdma-gid", server, where),
                what=f"the RDMA device {port.device} has no RoCE v2 entry (GID) for an address of "
                f"{interface.name} ({addresses})",
                why="such an entry is what a link by RDMA starts from",
                advice="the kernel makes it from the interface's addresses: set the interface "
                "down and up, and see that its card is in RoCE v2 mode",
            )


def roce_index(port: RdmaPortFacts, interface: InterfaceFacts) -> int | None:
    """The first entry of RoCE v2 that is for an address of the interface."""
    addresses = {without_zone(ip) if is_ipv6(ip) else f"::ffff:{ip}" for ip in interface.ips}
    for gid in port.gids:
        if gid.kind == ROCE_V2 and _as_address(gid.gid) in addresses:
            return gid.index
    return None


def _as_address(gid: str) -> str:
    """IPv4 as addresses are written in IPv6, ::ffff:10.0.0.1."""
    import ipaddress

    address = ipaddress.IPv6Address(gid)
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def check_rdma_mtu(site: Site) -> Iterator[Finding]:
    """Does a packet of RDMA carry as much as it could?"""
    for server, where, interface, port in _rdma_interfaces(site):
        payload = port.mtu or roce_mtu(interface.mtu)
        if port.layer != "Ethernet" or payload >= _BEST_PAYLOAD_BYTES:
            continue
        fits = roce_mtu(interface.mtu) > payload
        yield Finding(
            *("note", "rdma-mtu", server, where),
            what=f"packets of RDMA carry {payload} bytes, for the MTU is {interface.mtu}",
            why=f"with {_BEST_PAYLOAD_BYTES} there are fewer packets and headers, for TCP too",
            repair=()
            if fits
            else (f"ip link set dev {shlex.quote(interface.name)} mtu {_JUMBO_BYTES}",),
            advice="set the interface down and up, so that the device takes its MTU"
            if fits
            else "at both ends of the cable; then correct `mtu` in the cluster file",
        )


def check_flow_control(site: Site) -> Iterator[Finding]:
    """Does a receiver that cannot keep up slow its sender down, instead of losing packets?"""
    for server, where, interface, port in _rdma_interfaces(site):
        card = site.facts[server].rdma.card_of(interface.name)
        if port.layer != "Ethernet" or card is None or card.pause is None:
            continue
        if card.pause or card.pfc:
            continue
        yield Finding(
            *("note", "rdma-flow-control", server, where),
            what=f"{interface.name} has neither pause frames nor priority flow control"
            + ("" if card.ecn is None else f", congestion marks (ECN) are {_on(card.ecn)}"),
            why="a port that gets more than its PCIe link carries drops packets, and RoCE then "
            "sends much again",
            repair=(f"ethtool -A {shlex.quote(interface.name)} rx on tx on",),
            advice="at both ends of the cable",
        )


def _on(value: bool) -> str:
    return "on" if value else "off"


def check_pcie(site: Site) -> Iterator[Finding]:
    """Does each card use all that it and its slot could?"""
    for server, facts in site.facts.items():
        told: set[str] = set()
        for interface in site.fabric_interfaces(server):
            card = facts.rdma.card_of(interface.name)
            if card is None or card.pcie_gbps is None or card.pcie_best_gbps is None:
                continue
            if card.pcie_gbps >= card.pcie_best_gbps * 0.999 or str(card.slot) in told:
                continue
            told.add(str(card.slot))
            yield Finding(
                *("warning", "pcie", server, site.name_of_interface(server, interface.name)),
                what=f"the PCIe link of {interface.name} ({card.slot}) runs at {card.pcie_text}, "
                f"{format_gbps(card.pcie_gbps)}, of {format_gbps(card.pcie_best_gbps)} that the "
                "card could",
                why="all ports of the card share that",
                advice="another slot, or new firmware of the board; some systems lower it while "
                "nothing is sent",
            )


def check_registering(site: Site) -> Iterator[Finding]:
    """May processes register memory, and are the libraries there?"""
    for server, facts in site.facts.items():
        if not any(port.interface for port in facts.rdma.ports):
            continue
        if facts.rdma.libraries_missing:
            names = {"fabric": "libfabric1", "ibverbs": "ibverbs-providers"}
            packages = " ".join(names[name] for name in facts.rdma.libraries_missing)
            yield Finding(
                *("note", "rdma-libraries", server, server),
                what="RDMA devices are here, but not all libraries: lib"
                + ", lib".join(facts.rdma.libraries_missing),
                why="without them links use TCP",
                repair=(f"apt-get install {packages}",),
            )
        limit = facts.rdma.memlock_bytes
        if limit is not None and limit < _ENOUGH_MEMORY_BYTES and not facts.root:
            yield Finding(
                *("warning", "rdma-memlock", server, server),
                what=f"a process may lock {limit >> 10} KiB of memory (ulimit -l)",
                why="links by RDMA register the memory that they send from and receive into, and "
                "fail without",
                advice="set `* - memlock unlimited` in /etc/security/limits.d, and log in again",
            )


def _rdma_interfaces(site: Site) -> Iterator[tuple[str, str, InterfaceFacts, RdmaPortFacts]]:
    """Server, where, interface and RDMA port, of all interfaces that a job may use."""
    for server, facts in site.facts.items():
        for interface in site.fabric_interfaces(server):
            port = facts.rdma.port_of(interface.name)
            if port is not None:
                yield server, site.name_of_interface(server, interface.name), interface, port
