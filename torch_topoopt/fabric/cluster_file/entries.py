"""The entries of a cluster file: servers, ports, cables, switches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.fabric.credentials import PasswordSource  # noqa: TC001 - read with the fields
from torch_topoopt.links.addresses import subnet_of
from torch_topoopt.plan.codec import DocumentError, brief, brief_list

if TYPE_CHECKING:
    from torch_topoopt.links.addresses import PortNetwork

CableEnds = tuple[str, str]  # "server:port", twice


@dataclass(frozen=True)
class PortEntry:
    """A port of a server. `address` is IPv4 or IPv6 with its prefix length, 10.201.0.1/30, or
    link-local IPv6 with its interface, fe80::1%eth0/64.

    `gbps` is the speed per direction (None: not known), `mtu` in bytes. `switch` is the socket of a
    circuit switch that the port is plugged into, "ocs0:3"; with a 1x2 switch in front of the port,
    `lookahead` is the socket that it reaches on the other side.
    """

    name: str
    address: str
    gbps: float | None = None
    interface: str | None = None
    mac: str | None = None
    mtu: int | None = None
    switch: str | None = None
    lookahead: str | None = None

    @property
    def ip(self) -> str:
        """The address without its prefix length."""
        return self.address.partition("/")[0]

    @property
    def subnet(self) -> PortNetwork | None:
        """None for a link-local IPv6 address: that is of one cable."""
        return subnet_of(self.address)


@dataclass(frozen=True)
class ServerEntry:
    """A server. `management` (an address or host name) is for control traffic, never for data.

    `inside_gbps` joins its accelerators (None: as in their usual box). Several servers on one
    machine (a MIG slice or a NUMA node each) name the same `host`.
    """

    JSON_FIELDS: ClassVar = ("name", "management", "accelerators")

    name: str
    management: str
    accelerators: int = 1
    host: str | None = None
    ports: tuple[PortEntry, ...] = ()
    inside_gbps: float | None = None

    @property
    def machine(self) -> str:
        """Equal for the servers of one machine."""
        return self.host or self.name


@dataclass(frozen=True)
class SwitchEntry:
    """A circuit switch. `kind` names its driver, which gets `options` as they are.

    `sockets` are the sockets of this cluster: nothing else on the switch is ever touched.
    """

    name: str
    kind: str
    address: str
    user: str | None = None
    password: PasswordSource | None = None
    sockets: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict, hash=False)


SELECTOR_KINDS = ("command", "memory")


@dataclass(frozen=True)
class SelectorEntry:
    """The 1x2 switches of a cluster file. `timeout_s`: for one call of `program`."""

    kind: str
    program: tuple[str, ...] = ()
    timeout_s: int = 10

    def validate(self, path: str = "selector") -> None:
        """Raises DocumentError naming the first rule that is broken."""
        if self.kind not in SELECTOR_KINDS:
            raise DocumentError(
                f"{path}.kind: {brief(self.kind)} is not one of {', '.join(SELECTOR_KINDS)}"
            )
        if self.kind == "command" and not self.program:
            raise DocumentError(f"{path}.program: missing; kind command runs it for get and set")
        if self.kind == "memory" and self.program:
            raise DocumentError(f"{path}.program: kind memory runs no program; leave it out")
        if self.timeout_s < 1:
            raise DocumentError(f"{path}.timeout_s: {self.timeout_s} is not at least 1")


@dataclass(frozen=True)
class HammingMeshEntry:
    """The servers of a cluster file as accelerators of a HammingMesh (SC 2022).

    `boards`: columns and rows of boards (x, y); `board`: accelerators along a row and a column of
    one (a, b); server number row * (a * x) + column. `boards_per_leaf`: boards of a row, or a
    column, on one switch of the lowest level of their tree.
    """

    boards: tuple[int, int]
    board: tuple[int, int] = (1, 1)
    boards_per_leaf: int = 16

    @property
    def servers(self) -> int:
        """How many there are."""
        return self.boards[0] * self.boards[1] * self.board[0] * self.board[1]


@dataclass(frozen=True)
class ClusterEntries:
    """A whole cluster. `cables` are pairs of "server:port", `selector` its 1x2 switches."""

    version: int
    name: str
    servers: tuple[ServerEntry, ...]
    cables: tuple[CableEnds, ...] = ()
    switches: tuple[SwitchEntry, ...] = ()
    selector: SelectorEntry | None = None
    hammingmesh: HammingMeshEntry | None = None

    @cached_property
    def ports(self) -> dict[str, tuple[int, PortEntry]]:
        """ "h0:p0" -> number of the server, and the port."""
        return {
            f"{server.name}:{port.name}": (number, port)
            for number, server in enumerate(self.servers)
            for port in server.ports
        }

    def shares_subnet(self, end: str) -> bool:
        """Whether another port of the same server is in the subnet of port `end`, so that a route
        does not say which of them is meant."""
        server, port = self.ports[end]
        return any(
            other is not port
            and port.subnet is not None
            and other.subnet is not None
            and port.subnet.overlaps(other.subnet)
            for other in self.servers[server].ports
        )

    def server_number(self, name: str) -> int:
        """The position of a server in the file; raises DocumentError for an unknown name."""
        for number, server in enumerate(self.servers):
            if server.name == name:
                return number
        known = brief_list([server.name for server in self.servers])
        raise DocumentError(
            f"{brief(name)} is not a server of cluster {self.name} (these are: {known})"
        )
