"""The options of a job's links: as the environment requests and this build supports.

A link may have several TCP connections. A network card hands the packets of one connection to one
core, and a connection has one congestion window, so a fast link needs several. The transport treats
each as a cable: messages are divided among them, and a lost one is reopened while the others carry
its part.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_topoopt.environment import ENCRYPT_VARIABLE, TRANSPORT_VARIABLE
from torch_topoopt.links.addresses import without_zone
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.options import TCP, RequestedLinks
from torch_topoopt.runtime.versions import BuildMismatchError, check_tls

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import LinkTraffic, Route

# From each rate on, the default number of connections of a link.
_CONNECTIONS_BY_GBPS = ((100.0, 4), (25.0, 2))


def requested_links(extension: Any) -> RequestedLinks:
    """The links that this process's environment requests.

    Raises FabricError for a request that is invalid, or unsupported by this build or host.
    """
    requested = RequestedLinks.of(os.environ)
    if requested.encrypted:
        try:
            check_tls()
        except BuildMismatchError as error:
            raise FabricError(f"{ENCRYPT_VARIABLE}: {error}") from None
    transport = requested.transport
    if transport not in (TCP, "auto") and (missing := extension.fabric_missing()):
        raise FabricError(f"{TRANSPORT_VARIABLE}: {transport} needs libfabric, and {missing}")
    return requested


def provider_chooser(extension: Any, transport: str) -> Callable[[socket.socket], str]:
    """A function from a link's connection to the provider that carries the link; "": our TCP.

    `fabric` prefers `verbs` and else takes `tcp`; `auto` takes `verbs` or no provider at all.
    """
    if transport == TCP:
        return lambda _: ""
    _, _, provider = transport.partition(":")
    if provider:
        return lambda _: provider
    verbs: set[str] = set()
    if not extension.fabric_missing():
        verbs = set(extension.fabric_addresses("verbs"))
    other = "tcp" if transport == "fabric" else ""

    def provider_of(connection: socket.socket) -> str:
        return "verbs" if without_zone(connection.getsockname()[0]) in verbs else other

    return provider_of


def connections_per_link(requested: RequestedLinks, wiring: Wiring) -> int:
    """The number for all ranks: as requested, else by the fastest port of the wiring."""
    if requested.connections is not None:
        return requested.connections
    if requested.why_single:
        return 1
    rates = [port.gbps or port.speed_gbps for port in wiring.ports]
    fastest = max((rate for rate in rates if rate is not None), default=0.0)
    return next((number for gbps, number in _CONNECTIONS_BY_GBPS if fastest >= gbps), 1)


def over_all_connections(routes: Iterable[Route], per_link: int) -> list[Route]:
    """Every route once per connection of a link; the k-th uses the k-th connections."""
    return [
        replace(route, weight=route.weight / per_link) for route in routes for _ in range(per_link)
    ]


def of_links(traffic: Iterable[LinkTraffic]) -> list[LinkTraffic]:
    """The traffic of links from that of their connections, which are busy at the same time."""
    links: dict[Any, LinkTraffic] = {}
    for each in traffic:
        before = links.get(each.link)
        if before is None:
            links[each.link] = each
        else:
            both, seconds = before + each, max(before.seconds, each.seconds)
            links[each.link] = replace(both, seconds=seconds, kind=each.kind)
    return list(links.values())
