"""What a host keeps of its cable ports: addresses, MTU and ARP settings. Pure functions."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from torch_topoopt.links.addresses import is_ipv6, is_link_local, without_zone
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import PortEntry

Addressing = Literal["keep", "ipv4", "ipv6"]

DEFAULT_SUBNETS = {"ipv4": "10.201.0.0/16", "ipv6": "fd00:201::/48"}
_CABLE_PREFIX = {"ipv4": 31, "ipv6": 64}
# units and keyfiles read other characters as patterns or as separators
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._@-]+")


@dataclass(frozen=True)
class KeptPort:
    """A port's settings. `address` has its prefix length, and no zone; `by_mac`: it is the
    link-local address that the interface derives from its MAC address (EUI-64). `sysctls`: below
    /proc/sys/net/ipv4/conf/INTERFACE.
    """

    JSON_FIELDS = ("port", "interface", "address", "mtu")

    port: str
    interface: str
    address: str
    by_mac: bool
    mtu: int | None
    sysctls: tuple[tuple[str, int], ...] = ()


def kept_ports(file: ClusterFile, server: str) -> tuple[KeptPort, ...]:
    """The cabled ports of a server; raises FabricError if one lacks its interface."""
    return tuple(_kept(file, server))


def _kept(file: ClusterFile, server: str) -> Iterator[KeptPort]:
    cabled = {end for cable in file.cables for end in cable}
    for port in file.servers[file.server_number(server)].ports:
        end = f"{server}:{port.name}"
        if end not in cabled and port.switch is None:
            continue
        name = port.interface
        if name is None:
            raise FabricError(
                f"{end}: the cluster file does not say its interface; add `interface: eth1` (the "
                "name on that host) to the port"
            )
        if not _PLAIN_NAME.fullmatch(name):
            raise FabricError(
                f"{end}: interface {name!r} has characters that configuration files read as "
                "patterns; rename the interface"
            )
        ip, _, prefix = port.address.rpartition("/")
        sysctls: tuple[tuple[str, int], ...] = ()
        if not is_ipv6(ip):
            # a port answers ARP for its own address only, and requests with it
            sysctls = (("arp_ignore", 1), ("arp_announce", 2))
            if file.shares_subnet(end):
                sysctls += (("rp_filter", 2),)  # loose: answers may leave from another port
        address = f"{without_zone(ip)}/{prefix}"
        yield KeptPort(end, name, address, _is_by_mac(port), port.mtu, sysctls)


def _is_by_mac(port: PortEntry) -> bool:
    return (
        is_link_local(port.ip)
        and port.mac is not None
        and ipaddress.IPv6Address(without_zone(port.ip)) == eui64_address(port.mac)
    )


def eui64_address(mac: str) -> ipaddress.IPv6Address:
    """The link-local address of an interface by its MAC address (RFC 4291, appendix A)."""
    octets = bytearray.fromhex(mac.replace(":", ""))
    octets[0] ^= 2
    identifier = bytes(octets[:3]) + b"\xff\xfe" + bytes(octets[3:])
    return ipaddress.IPv6Address(b"\xfe\x80" + bytes(6) + identifier)


def with_static_addresses(file: ClusterFile, addressing: Addressing, subnet: str) -> ClusterFile:
    """The cluster with an address of `subnet` at both ends of every cable: a /31 or a /64 each.

    Raises FabricError if the subnet is invalid or too small.
    """
    version, prefix = int(addressing[-1]), _CABLE_PREFIX[addressing]
    try:
        network = ipaddress.ip_network(subnet)
    except ValueError as error:
        raise FabricError(f"subnet: {error}") from None
    room = 2 ** (prefix - network.prefixlen) if network.prefixlen <= prefix else 0
    if network.version != version or room < len(file.cables):
        raise FabricError(
            f"subnet: {subnet} is not an IPv{version} network with a /{prefix} for each of "
            f"{len(file.cables)} cables, such as {DEFAULT_SUBNETS[addressing]}"
        )
    first = int(network.network_address)
    of_end = {}
    for number, cable in enumerate(file.cables):
        base = first + number * 2 ** (network.max_prefixlen - prefix)
        for last, end in enumerate(cable, start=version == 6):  # ::0 is for routers
            address = ipaddress.ip_address(base + last)
            of_end[end] = f"{address}/{prefix}"
    servers = tuple(
        replace(
            server,
            ports=tuple(
                replace(port, address=of_end.get(f"{server.name}:{port.name}", port.address))
                for port in server.ports
            ),
        )
        for server in file.servers
    )
    return replace(file, servers=servers).validate()


def check_free(subnet: str, server: str, ports: Iterable[KeptPort], found: Iterable[str]) -> None:
    """Raises FabricError if a line "INTERFACE ADDRESS/PREFIX" of a host is in `subnet`, at another
    interface than its cable ports."""
    own, network = {port.interface for port in ports}, ipaddress.ip_network(subnet)
    for line in found:
        interface, address = line.split()
        used = ipaddress.ip_interface(address).network
        if interface not in own and used.version == network.version and used.overlaps(network):
            raise FabricError(
                f"subnet: {subnet} overlaps {address} at {interface} of {server}; choose another"
            )
