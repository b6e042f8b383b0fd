"""Wiring: the addresses at which a fabric driver has made the links of one Plan real.

A driver writes it after it has verified every link; each rank reads it to open its own links.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.data_model import Document, DocumentError

if TYPE_CHECKING:
    from torch_topoopt.plan import Plan


@dataclass(frozen=True)
class PortAddress:
    """The IPv4 address of one server's port. `gbps` limits what the port sends; None: no limit."""

    server: int
    port: int
    address: str
    gbps: float | None


@dataclass(frozen=True)
class Wiring(Document):
    """Where every port of one Plan is. The receiving end of a link listens on TCP `tcp_port`."""

    KIND: ClassVar[str] = "Wiring"
    VERSION: ClassVar[int] = 1

    version: int
    fabric: str
    plan_digest: str
    tcp_port: int
    ports: tuple[PortAddress, ...]

    def validate(self) -> Self:
        if not self.fabric:
            raise DocumentError("fabric: must name the driver that made this wiring")
        if not 1 <= self.tcp_port <= 65535:
            raise DocumentError(f"tcp_port: {self.tcp_port} is not in 1..65535")
        used: dict[tuple[int, int], int] = {}
        owners: dict[str, int] = {}
        for i, port in enumerate(self.ports):
            where = f"ports[{i}]"
            end = (port.server, port.port)
            if port.server < 0 or port.port < 0:
                raise DocumentError(f"{where}: server and port must not be negative")
            if end in used:
                raise DocumentError(
                    f"{where}: port {port.port} of server {port.server} is already "
                    f"ports[{used[end]}]"
                )
            used[end] = i
            try:
                ipaddress.IPv4Address(port.address)
            except ipaddress.AddressValueError:
                raise DocumentError(
                    f"{where}.address: {port.address!r} is not an IPv4 address"
                ) from None
            if port.address in owners:
                raise DocumentError(
                    f"{where}.address: {port.address} is already ports[{owners[port.address]}]"
                )
            owners[port.address] = i
            if port.gbps is not None and not port.gbps > 0:
                raise DocumentError(f"{where}.gbps: {port.gbps} is not greater than 0")
        return self

    def check(self, plan: Plan) -> Self:
        """Returns self if it wires `plan`; raises DocumentError naming the first difference."""
        digest = plan.digest()
        if self.plan_digest != digest:
            raise DocumentError(
                f"plan_digest: {self.plan_digest!r} belongs to another plan; this one is {digest!r}"
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

    def by_port(self) -> dict[tuple[int, int], PortAddress]:
        """(server, port) -> its address."""
        return {(port.server, port.port): port for port in self.ports}
