"""A finding: the fault, its place, its effect, and the commands that repair it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.links.addresses import without_zone
from torch_topoopt.tools.doctor.gather import find_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import PortEntry
    from torch_topoopt.tools.doctor.facts import HostFacts, InterfaceFacts

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """`check` is the name of the check. `repair`: shell commands for `server`, as root; without
    them, `advice` tells a person what to do.
    """

    level: Level
    check: str
    server: str
    where: str
    what: str
    why: str
    repair: tuple[str, ...] = ()
    advice: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same before and after a repair that did not help."""
        return self.check, self.server, self.where


@dataclass(frozen=True)
class Site:
    """The facts of hosts by server name, and the cluster file, if there is one.

    Hosts that did not answer are not in `facts`.
    """

    facts: Mapping[str, HostFacts]
    file: ClusterFile | None = None

    def ports(self, server: str) -> Iterator[tuple[PortEntry, InterfaceFacts]]:
        """The ports of a server in the file whose interfaces exist."""
        if self.file is None:
            return
        for port in self.file.servers[self.file.server_number(server)].ports:
            interface = find_port(port, self.facts[server].interfaces)
            if interface is not None:
                yield port, interface

    def fabric_interfaces(self, server: str) -> list[InterfaceFacts]:
        """The interfaces that a job may use: the ports, or without a file all with an address."""
        if self.file is None:
            return [i for i in self.facts[server].interfaces if i.up and i.addresses]
        return [interface for _, interface in self.ports(server)]

    def far_end(self, server: str, port: str) -> str | None:
        """ "server:port" at the other end of a cable of the file."""
        for a, b in self.file.cables if self.file else ():
            if f"{server}:{port}" in (a, b):
                return b if a == f"{server}:{port}" else a
        return None

    def owner_of_mac(self, mac: str) -> tuple[str, str] | None:
        """(server, interface) of a MAC address among the known hosts."""
        for server, facts in self.facts.items():
            for interface in facts.interfaces:
                if interface.mac == mac:
                    return server, interface.name
        return None

    def owner_of_address(self, address: str) -> tuple[str, str] | None:
        """(server, interface) of an IPv6 address, without zone, among the known hosts."""
        for server, facts in self.facts.items():
            for interface in facts.interfaces:
                if address in map(without_zone, interface.ips):
                    return server, interface.name
        return None

    def name_of_interface(self, server: str, interface: str) -> str:
        """ "h1:p1" for an interface that is a port of the file, else "h1 (eth1)"."""
        for port, found in self.ports(server):
            if found.name == interface:
                return f"{server}:{port.name}"
        return f"{server} ({interface})"

    @property
    def has_relays(self) -> bool:
        """Are there servers without a cable between them?"""
        if self.file is None:
            return False
        pairs = {frozenset(end.partition(":")[0] for end in cable) for cable in self.file.cables}
        count = len(self.file.servers)
        return bool(pairs) and len(pairs) < count * (count - 1) // 2

    def is_relay(self, server: str) -> bool:
        """May others be reached through this server?"""
        far = (self.far_end(server, port.name) for port, _ in self.ports(server))
        return self.has_relays and len({end.partition(":")[0] for end in far if end}) > 1


def set_sysctl(path: str, value: object) -> str:
    """The shell command that sets /proc/sys/net/PATH."""
    return f"echo {value} >{shlex.quote(f'/proc/sys/net/{path}')}"
