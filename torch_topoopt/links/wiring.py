"""Wiring: the addresses of one Plan's links.

A fabric driver writes it after it has verified every link; ranks read it to open their links.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.links.addresses import (
    PORT_ADDRESSES,
    is_link_local,
    parse_port_ip,
    zone_of,
)
from torch_topoopt.plan.codec import Document, DocumentError, brief

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.plan import Link, Plan


@dataclass(frozen=True)
class PortAddress:
    """The address of a server's port: IPv4, IPv6, or link-local IPv6 with its interface,
    fe80::1%eth0.

    `gbps` limits the port's sending rate; None: no limit. Several ports of a server may share one
    interface and its address. The port listens on `tcp_port` (None: that of the Wiring).
    `speed_gbps` is the rate of its `interface` (None: not known).
    """

    server: int
    port: int
    address: str
    gbps: float | None
    tcp_port: int | None = None
    speed_gbps: float | None = None
    interface: str | None = None


@dataclass(frozen=True)
class ServerAddress:
    """An IPv4 address of a server that all others reach; hosts between forward it."""

    server: int
    address: str


@dataclass(frozen=True)
class Wiring(Document):
    """The addresses of all ports of one Plan. The receiving end of a link listens on `tcp_port`.

    `forwarded` has every server's address if the hosts' kernels relay along the plan's routes. If
    it is empty, the ranks relay. `spares` are ports that no link of the plan uses: a lost link may
    move to them (cable_keeper.py).
    """

    KIND: ClassVar[str] = "Wiring"
    VERSION: ClassVar[int] = 1

    version: int
    fabric: str
    plan_digest: str
    tcp_port: int
    ports: tuple[PortAddress, ...]
    forwarded: tuple[ServerAddress, ...] = ()
    spares: tuple[PortAddress, ...] = ()

    def validate(self) -> Self:
        if not self.fabric:
            raise DocumentError("fabric: must name the driver that made this wiring")
        if not 1 <= self.tcp_port <= 65535:
            raise DocumentError(f"tcp_port: {self.tcp_port} is not in 1..65535")
        used: dict[tuple[int, int], str] = {}
        owners: dict[tuple[str, int], tuple[int, str]] = {}  # with the server
        for where, port in self._every_port():
            end = (port.server, port.port)
            if port.server < 0 or port.port < 0:
                raise DocumentError(f"{where}: server and port must not be negative")
            if end in used:
                raise DocumentError(
                    f"{where}: port {port.port} of server {port.server} is already {used[end]}"
                )
            used[end] = where
            _check_address(where, port)
            if port.tcp_port is not None and not 1 <= port.tcp_port <= 65535:
                raise DocumentError(f"{where}.tcp_port: {port.tcp_port} is not in 1..65535")
            listener = (port.address, self.tcp_port_of(port))
            owner, place = owners.setdefault(listener, (port.server, where))
            # two hosts may have the same link-local address, on different cables
            if owner != port.server and not is_link_local(port.address):
                raise DocumentError(f"{where}.address: {port.address} is already {place}")
            for name, rate in (("gbps", port.gbps), ("speed_gbps", port.speed_gbps)):
                if rate is not None and not rate > 0:
                    raise DocumentError(f"{where}.{name}: {rate} is not greater than 0")
        for i, entry in enumerate(self.forwarded):
            where = f"forwarded[{i}]"
            if entry.server != i:
                raise DocumentError(
                    f"{where}.server: {entry.server} is not {i}; list all servers in order, or none"
                )
            try:
                ipaddress.IPv4Address(entry.address)
            except ipaddress.AddressValueError:
                raise DocumentError(
                    f"{where}.address: {brief(entry.address)} is not an IPv4 address"
                ) from None
        return self

    def _every_port(self) -> Iterator[tuple[str, PortAddress]]:
        """All ports and spares, with their paths in the document."""
        for name, listed in (("ports", self.ports), ("spares", self.spares)):
            for i, port in enumerate(listed):
                yield f"{name}[{i}]", port

    def check(self, plan: Plan, text_digest: str = "") -> Self:
        """Returns self if it wires `plan`; raises DocumentError naming the first difference.

        `text_digest` is the digest of the file of the plan; canonical text has the plan's own.
        """
        digest = self.plan_digest if text_digest == self.plan_digest else plan.digest()
        if self.plan_digest != digest:
            raise DocumentError(
                f"plan_digest: {brief(self.plan_digest)} belongs to another plan; "
                f"this one is {brief(digest)}"
            )
        if self.forwarded and len(self.forwarded) != plan.cluster.servers:
            raise DocumentError(
                f"forwarded: {len(self.forwarded)} addresses for {plan.cluster.servers} servers"
            )
        present = self.by_port()
        for i, link in enumerate(plan.network.links):
            for server, port in (
                (link.source, link.source_port),
                (link.target, link.target_port),
            ):
                if (server, port) not in present:
                    raise DocumentError(
                        f"ports: network.links[{i}] uses port {port} of server {server}, "
                        "which has no address"
                    )
        return self

    def link_rates(self, plan: Plan) -> dict[tuple[int, int], float]:
        """(source, target) -> total Gb/s of their links; empty unless every rate is known."""
        known = self.planned_rates(plan)
        rates: dict[tuple[int, int], float] = {}
        for link in plan.network.links:
            if link not in known:
                return {}
            pair = (link.source, link.target)
            rates[pair] = rates.get(pair, 0.0) + known[link]
        return rates

    def planned_rates(self, plan: Plan) -> dict[Link, float]:
        """Gb/s of each link of the plan: the lower known rate of its ends.

        Links without a known rate are omitted.
        """
        ports = self.by_port()
        rates = {}
        for link in plan.network.links:
            near = ports[link.source, link.source_port]
            far = ports[link.target, link.target_port]
            known = [
                rate
                for rate in (near.gbps, near.speed_gbps, far.gbps, far.speed_gbps)
                if rate is not None
            ]
            if known:
                rates[link] = min(known)
        return rates

    def tcp_port_of(self, port: PortAddress) -> int:
        """The TCP port at which `port` listens."""
        return self.tcp_port if port.tcp_port is None else port.tcp_port

    def spares_of(self, server: int) -> list[PortAddress]:
        return [port for port in self.spares if port.server == server]

    def by_port(self) -> dict[tuple[int, int], PortAddress]:
        """(server, port) -> its address."""
        return {(port.server, port.port): port for port in self.ports}


def _check_address(where: str, port: PortAddress) -> None:
    """Raises DocumentError."""
    try:
        parse_port_ip(port.address)
    except ValueError:
        raise DocumentError(
            f"{where}.address: {brief(port.address)} is not an address of a port: {PORT_ADDRESSES}"
        ) from None
    zone = zone_of(port.address)
    if zone is not None and port.interface not in (None, zone):
        raise DocumentError(
            f"{where}.interface: {brief(port.interface)} is not {brief(zone)}, the interface of "
            "its address"
        )
