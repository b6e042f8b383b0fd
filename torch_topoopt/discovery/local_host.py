"""This machine's facts for the driver of the static fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.discovery.interfaces import list_interfaces
from torch_topoopt.discovery.neighbours import Neighbours

if TYPE_CHECKING:
    from collections.abc import Mapping


class NamespaceHost:
    """The interfaces of this network namespace, and what is at the other end of their cables."""

    def interfaces(self) -> dict[str, str]:
        """Address -> interface, of all interfaces that are up."""
        listed = list_interfaces(every_address=True)
        return {interface.address: interface.name for interface in listed}

    def announce(
        self, token: str, udp_port: int, server: str, ports: Mapping[str, str]
    ) -> Neighbours:
        """Announces the ports (port -> interface) of `server` to the other ends of their cables."""
        return Neighbours(token, udp_port, server, ports)
