"""Addresses of ports: IPv4, IPv6, or link-local IPv6 with its zone, `fe80::1%eth0`.

Every interface that is up has a link-local address (RFC 4291, section 2.5.6), so cables work
without configuration. Here it includes RFC 4007's zone, the name of its interface on its own host.
Hosts do not forward it.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from torch_topoopt.links import netlink
from torch_topoopt.links.hardware import physical_port

PortIP = ipaddress.IPv4Address | ipaddress.IPv6Address
PortNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

PORT_ADDRESSES = "IPv4, IPv6, or link-local IPv6 with its interface, such as fe80::1%eth0"

_SO_BINDTODEVICE = getattr(socket, "SO_BINDTODEVICE", 25)
_SELF_ASSIGNED = ipaddress.IPv4Network("169.254.0.0/16")  # RFC 3927


def parse_port_ip(text: str) -> PortIP:
    """Parses a port's address; raises ValueError for others, and for link-local without a zone."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.is_link_local is not bool(address.scope_id):
        raise ValueError(f"{text}: link-local addresses have an interface, and no others do")
    if address.is_multicast or address.is_unspecified or address.ipv4_mapped:
        raise ValueError(f"{text} is not an address of a port")
    return address


def canonical(address: str) -> str:
    """An IPv6 address as the kernel writes it, with its prefix length; other text unchanged."""
    ip, slash, prefix_length = address.partition("/")
    if not is_ipv6(ip) or zone_of(ip):
        return address
    try:
        return f"{ipaddress.IPv6Address(ip)}{slash}{prefix_length}"
    except ValueError:
        return address


def zone_of(address: str) -> str | None:
    """The interface of a link-local IPv6 address; None for any other address."""
    return address.partition("%")[2].partition("/")[0] or None


def without_zone(address: str) -> str:
    """The address as other hosts see it."""
    return address.partition("%")[0]


def is_ipv6(address: str) -> bool:
    return ":" in address


def is_link_local(address: str) -> bool:
    """Whether it is a link-local IPv6 address, with or without zone and prefix length."""
    if not is_ipv6(address):
        return False
    try:
        return ipaddress.IPv6Address(without_zone(address.partition("/")[0])).is_link_local
    except ValueError:
        return False


def is_routable(address: str) -> bool:
    """Whether hosts may forward it: link-local ones (IPv4: 169.254.x.y) are not forwarded."""
    if is_ipv6(address):
        return not is_link_local(address)
    return ipaddress.IPv4Address(address.partition("/")[0]) not in _SELF_ASSIGNED


def subnet_of(address: str) -> PortNetwork | None:
    """The network of an address with its prefix length; None for a link-local IPv6 address, whose
    network is its cable."""
    return None if is_link_local(address) else ipaddress.ip_interface(address).network


def share_subnet(a: str, b: str) -> bool:
    """Whether two addresses with prefix lengths may be the ends of one cable."""
    if is_link_local(a) or is_link_local(b):
        return is_link_local(a) and is_link_local(b)
    near, far = ipaddress.ip_interface(a), ipaddress.ip_interface(b)
    return far.ip in near.network and near.ip in far.network


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if is_ipv6(address) else socket.AF_INET


def own_endpoint(address: str, tcp_port: int) -> tuple[Any, ...]:
    """The endpoint to bind at a local address; raises OSError if its interface is missing."""
    zone = zone_of(address)
    if zone is None:
        return address, tcp_port
    return without_zone(address), tcp_port, 0, _index(zone)


def far_endpoint(address: str, tcp_port: int, near: str) -> tuple[Any, ...]:
    """The endpoint to connect to; link-local ones are reached through the interface of `near`."""
    zone = zone_of(near)
    if zone is None or not is_link_local(address):
        return address, tcp_port
    return without_zone(address), tcp_port, 0, _index(zone)


def stay_on_cable(connection: socket.socket, address: str, interface: str | None) -> None:
    """Binds a socket to `interface`, which has `address`, if a route may use another interface.

    Routes may if another port of this host has an address in the same subnet, for example a
    self-assigned one (169.254.x.y). Functions of one port are exempt: they share the cable and
    answer ARP for each other, so packets for one may arrive at another. IPv6 has zones instead.
    """
    if interface is None or zone_of(address) is not None:
        return
    if subnet_is_shared(address, interface):
        connection.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, interface.encode() + b"\0")


def interface_of(address: str) -> str | None:
    """The interface of this host that has `address`; None if there is none."""
    if (zone := zone_of(address)) is not None:
        return zone
    ip = ipaddress.ip_address(address)
    listed = netlink.addresses(family_of(address))
    return next((e.interface for e in listed if ipaddress.ip_address(e.address) == ip), None)


def subnet_is_shared(address: str, interface: str) -> bool:
    """Whether another port of this host has an address in the subnet of `address`."""
    ip = ipaddress.ip_address(address)
    listed = netlink.addresses(family_of(address))
    networks = [
        (one.interface, ipaddress.ip_network((one.address, one.prefix_length), strict=False))
        for one in listed
    ]
    own = [network for name, network in networks if name == interface and ip in network]
    others = {
        name for name, network in networks if name != interface and any(map(network.overlaps, own))
    }
    port = physical_port(interface) if others else None
    return any(port is None or physical_port(other) != port for other in others)


def _index(zone: str) -> int:
    try:
        return socket.if_nametoindex(zone)
    except OSError as error:
        raise OSError(error.errno, f"this host has no interface {zone}") from None
