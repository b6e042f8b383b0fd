"""Addresses of ports: IPv4, or IPv6 of one cable with its zone, `fe80::1%eth0`.

Every interface that is up gives itself a link-local address (RFC 4291, section 2.5.6), so cables
work without any configuration. Such an address is of one interface only: RFC 4007's zone, the name
of that interface on its own host, is part of it here. Hosts do not forward it.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

PortIP = ipaddress.IPv4Address | ipaddress.IPv6Address

_SO_BINDTODEVICE = getattr(socket, "SO_BINDTODEVICE", 25)
_SELF_ASSIGNED = ipaddress.IPv4Network("169.254.0.0/16")  # RFC 3927


def parse_port_ip(text: str) -> PortIP:
    """Raises ValueError for what is neither IPv4 nor link-local IPv6 with its zone."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and not (
        address.is_link_local and address.scope_id
    ):
        raise ValueError(f"{text} is no link-local address with its interface")
    return address


def zone_of(address: str) -> str | None:
    """The interface of a link-local IPv6 address; None for IPv4."""
    return address.partition("%")[2].partition("/")[0] or None


def without_zone(address: str) -> str:
    """As others see it."""
    return address.partition("%")[0]


def is_link_local(address: str) -> bool:
    """Whether it is a link-local IPv6 address."""
    return ":" in address


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if is_link_local(address) else socket.AF_INET


def own_endpoint(address: str, tcp_port: int) -> tuple[Any, ...]:
    """What to bind to at an address of this host; raises OSError if its interface is not here."""
    zone = zone_of(address)
    if zone is None:
        return address, tcp_port
    return without_zone(address), tcp_port, 0, _index(zone)


def far_endpoint(address: str, tcp_port: int, near: str) -> tuple[Any, ...]:
    """What to connect to from `near`, through whose interface a link-local address is reached."""
    zone = zone_of(near)
    if zone is None or not is_link_local(address):
        return address, tcp_port
    return without_zone(address), tcp_port, 0, _index(zone)


def stay_on_cable(connection: socket.socket, address: str, interface: str | None) -> None:
    """Binds a socket of a self-assigned IPv4 address (169.254.x.y) to its interface.

    All ports with such addresses are in one subnet, so a route does not say which one is meant. An
    IPv6 zone says it by itself.
    """
    if interface is None or is_link_local(address):
        return
    if ipaddress.IPv4Address(address) in _SELF_ASSIGNED:
        connection.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, interface.encode() + b"\0")


def _index(zone: str) -> int:
    try:
        return socket.if_nametoindex(zone)
    except OSError as error:
        raise OSError(error.errno, f"this host has no interface {zone}") from None
