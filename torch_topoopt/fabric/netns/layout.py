"""Names and addresses of one fabric of network namespaces; pure functions.

Fabrics on one machine differ in their name (that of their namespaces) and in their block number
(their addresses). Only the management network is visible outside the namespaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.plan import Link

MAX_SERVERS = 250
MAX_DEGREE = 120
BLOCKS = 64
SHARED_PREFIX = 16  # length of the subnet of all ports if circuits may join any two of them
CABLE_PREFIX = 30  # length; MAX_SERVERS * MAX_DEGREE / 2 cables of four addresses fit into a /16
LAUNCHER = -1  # stands for this machine itself on the management network

_PREFIX = "topoopt-"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_NAMESPACE = re.compile(rf"{_PREFIX}(?P<name>.+)-(?P<role>\d+|management|switch\d*)")


@dataclass(frozen=True)
class NetnsLayout:
    """The fabric `name` with the addresses of `block`.

    198.18.B.0/24 is the management network of block B, 198.19.B.S+1 the address of server S itself
    (198.18.0.0/15 is set aside for measurements, RFC 2544). Cable C is the subnet of four addresses
    from 10.64+B.0.0 + 4 C on, as people give real cables a /30 each; its ends are the middle two.
    """

    name: str
    block: int = 0

    def namespace(self, server: int) -> str:
        return f"{_PREFIX}{self.name}-{server}"

    @property
    def management_namespace(self) -> str:
        return f"{_PREFIX}{self.name}-management"

    @property
    def switch_namespace(self) -> str:
        return f"{_PREFIX}{self.name}-switch"

    def packet_switch_namespace(self, switch: int) -> str:
        """The namespace of a packet switch, counted from 0."""
        return f"{self.switch_namespace}{switch}"

    def packet_switch_address(self, switch: int) -> str:
        """The address with which a packet switch answers."""
        number = switch + 1
        return f"10.{64 + self.block}.{number >> 8}.{number & 255}"

    @property
    def launcher_interface(self) -> str:
        """This machine's interface on the management network; its fabric owns the block."""
        return f"topoopt{self.block}"

    @property
    def management_network(self) -> str:
        return f"198.18.{self.block}.0/24"

    @property
    def server_network(self) -> str:
        return f"198.19.{self.block}.0/24"

    def management_address(self, server: int) -> str:
        """The management address of a server, or of this machine (LAUNCHER)."""
        return f"198.18.{self.block}.{server + 2}"

    def server_address(self, server: int) -> str:
        """The address of a server over the cables, relayed by the servers in between."""
        return f"198.19.{self.block}.{server + 1}"

    def cable_address(self, cable: int, end: int) -> str:
        """The address of end 0 or 1 of a cable; both are in one subnet of `CABLE_PREFIX`."""
        offset = 4 * cable + 1 + end
        return f"10.{64 + self.block}.{offset >> 8}.{offset & 255}"

    def port_addresses(self, cables: Iterable[Link]) -> dict[tuple[int, int], str]:
        """(server, port) -> address, of the ends of the `cables` (one direction of each)."""
        addresses: dict[tuple[int, int], str] = {}
        for number, cable in enumerate(cables):
            addresses[cable.source, cable.source_port] = self.cable_address(number, 0)
            addresses[cable.target, cable.target_port] = self.cable_address(number, 1)
        return addresses

    def spare_addresses(
        self, cables: int, servers: int, degree: int, spare_ports: int
    ) -> dict[tuple[int, int], str]:
        """(server, port) -> address, of the ports beyond `degree`; the planned ones have the
        addresses of `cables`."""
        spares = [(server, degree + k) for server in range(servers) for k in range(spare_ports)]
        return {end: self.cable_address(cables + i, 0) for i, end in enumerate(spares)}

    def forward_address(self, server: int, port: int) -> str:
        """Names the forwarding half of a port in its neighbour's routes; no interface has it."""
        return f"10.{64 + BLOCKS + self.block}.{server}.{port + 1}"

    def circuit_address(self, server: int, port: int) -> str:
        """Names a port in the routes of servers with a circuit to it; no interface has it."""
        return f"10.{64 + BLOCKS + self.block}.{server}.{129 + port}"

    def port_mac(self, server: int, port: int) -> str:
        """The MAC address of the half of a port for this server's own traffic."""
        return f"02:74:{self.block:02x}:{server:02x}:{port:02x}:01"

    def cable_mac(self, end: int) -> str:
        """The MAC address of a cable's end at a switch or host, counted over all cables."""
        return f"02:75:{self.block:02x}:{end >> 16:02x}:{end >> 8 & 255:02x}:{end & 255:02x}"

    def forward_mac(self, server: int, port: int) -> str:
        """The MAC address of the half of a port for relayed traffic."""
        return f"02:74:{self.block:02x}:{server:02x}:{port:02x}:02"


def port_interface(port: int) -> str:
    return f"port{port}"


def socket_name(server: int, port: int, degree: int) -> str:
    """The socket of the emulated switch that port `port` of `server` is plugged into."""
    return str(server * degree + port + 1)


def spare_socket_name(server: int, port: int, degree: int, spare_ports: int, servers: int) -> str:
    """The same for a port beyond `degree`, of which every server has `spare_ports`."""
    return str(servers * degree + server * spare_ports + port - degree + 1)


def socket_interface(socket: str) -> str:
    """The interface of a socket in the switch's namespace."""
    return f"socket{socket}"


def check_name(name: str) -> str:
    """Returns `name`; raises FabricError if a fabric cannot be called that."""
    if not _NAME.fullmatch(name):
        raise FabricError(
            f"name: {name!r} cannot be a fabric's; use up to 32 of a-z, 0-9 and, inside, '-'"
        )
    return name


def fabric_of(namespace: str) -> str | None:
    """The fabric that a namespace belongs to, by its name; None if to none."""
    found = _NAMESPACE.fullmatch(namespace)
    return found["name"] if found else None
