"""What carries the links between servers of this process's jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch_topoopt.links.addresses import without_zone
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

TRANSPORT_VARIABLE = "TOPOOPT_TRANSPORT"
TCP = "tcp"
TRANSPORTS = (TCP, "auto", "fabric", "fabric:tcp", "fabric:shm", "fabric:verbs")


def transport_asked(extension: Any, *, encrypted: bool) -> str:
    """What TOPOOPT_TRANSPORT says: one of TRANSPORTS.

    Raises FabricError for another value, one that cannot be encrypted, or without libfabric.
    """
    value = os.environ.get(TRANSPORT_VARIABLE, TCP)
    if value not in TRANSPORTS:
        raise FabricError(f"{TRANSPORT_VARIABLE}: {value!r} is none of {', '.join(TRANSPORTS)}")
    if value == TCP:
        return value
    if encrypted:
        raise FabricError(
            f"{TRANSPORT_VARIABLE}: links over libfabric are not encrypted, which is asked for "
            f"too; choose {TCP}, or no encryption"
        )
    if value != "auto" and (missing := extension.fabric_missing()):
        raise FabricError(f"{TRANSPORT_VARIABLE}: {value} needs libfabric, and {missing}")
    return value


def provider_chooser(extension: Any, transport: str) -> Callable[[socket.socket], str]:
    """Returns what says of a link's connection which provider carries the link; "" is our TCP.

    `fabric` prefers `verbs` and else takes `tcp`; `auto` takes `verbs` or no provider at all.
    """
    if transport == TCP:
        return lambda _: ""
    _, _, provider = transport.partition(":")
    if provider:
        return lambda _: provider
    verbs = set()
    if not extension.fabric_missing():
        verbs = {address for _, _, address in extension.fabric_offers("verbs") if address}
    other = "tcp" if transport == "fabric" else ""

    def provider_of(connection: socket.socket) -> str:
        return "verbs" if without_zone(connection.getsockname()[0]) in verbs else other

    return provider_of
