"""The routes of real hosts that forward for each other: of a plan, and of moved circuits; pure.

Every server has an address for forwarded connections, which no port has. Routes name the port at
the other end of a circuit by its own address and its MAC address, so hosts need no ARP.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns.kernel_tables import CircuitRoute
from torch_topoopt.fabric.netns.routes import hops_by_server
from torch_topoopt.links.addresses import is_ipv6
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.fabric.cluster.host_forwarding import HostPort
    from torch_topoopt.fabric.cluster.static_plan import PortNames
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.plan import Link, Plan

# Set aside for measurements (RFC 2544). Emulated hosts have lower addresses of it.
_SERVER_ADDRESSES = ipaddress.IPv4Network("198.19.128.0/17")


def server_address(server: int) -> str:
    """The address of a server for forwarded connections."""
    return str(_SERVER_ADDRESSES[server + 1])


def port_addresses(file: ClusterFile, placed: PortNames) -> dict[tuple[int, int], str]:
    """(server, port of the plan) -> address; raises FabricError for one that is not IPv4."""
    addresses = {}
    for port, end in placed.items():
        addresses[port] = file.ports[end][1].ip
        if is_ipv6(addresses[port]):
            raise FabricError(
                f"relay: kernel needs IPv4 addresses, and {end} has {addresses[port]}; give the "
                "port one, or use --relay user"
            )
    return addresses


class PlacedRoutes:
    """The routes of all servers, whose ports have these addresses and interfaces."""

    def __init__(
        self,
        plan: Plan,
        addresses: Mapping[tuple[int, int], str],
        ports: Mapping[tuple[int, int], HostPort],
    ) -> None:
        self._hops = hops_by_server(plan)
        self._links = plan.network.links
        self._addresses = addresses
        self._ports = ports

    def of_plan(self, server: int) -> tuple[list[CircuitRoute], dict[str, list[CircuitRoute]]]:
        """Those of a server's own packets, and of relayed ones by source address."""
        own = [
            self._route(link, self._addresses[link.target, link.target_port])
            for link in self._links
            if link.source == server
        ]
        relayed: dict[str, list[CircuitRoute]] = {}
        for hop in self._hops[server]:
            target = server_address(hop.target)
            if hop.relayed:
                of_source = relayed.setdefault(server_address(hop.source), [])
                of_source.append(self._route(hop.link, target))
            else:
                own.append(self._route(hop.link, target, source=server_address(server)))
        return own, relayed

    def of_topology(self, server: int, firsts: Mapping[int, Link]) -> list[CircuitRoute]:
        """Those to all addresses of the servers in `firsts`, which has the first link to each."""
        routes = []
        for other, link in firsts.items():
            routes.append(self._route(link, server_address(other), source=server_address(server)))
            routes += [
                self._route(link, address)
                for (owner, _), address in self._addresses.items()
                if owner == other
            ]
        return routes

    def _route(self, link: Link, destination: str, source: str | None = None) -> CircuitRoute:
        far = (link.target, link.target_port)
        return CircuitRoute(
            destination,
            self._ports[link.source, link.source_port].interface,
            self._addresses[far],
            self._ports[far].mac,
            source,
        )
