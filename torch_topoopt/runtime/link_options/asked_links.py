"""What the environment asks of the links of this process's jobs; but for threads and sends without
copy, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_topoopt.links.identity import wire_version
from torch_topoopt.runtime.link_options.encryption import encryption_asked
from torch_topoopt.runtime.link_options.parallel_connections import connections_asked
from torch_topoopt.runtime.link_options.threads_asked import (
    link_threads_asked,
    reduce_threads_asked,
)
from torch_topoopt.runtime.link_options.transport import TCP, transport_asked
from torch_topoopt.runtime.link_options.zero_copy_asked import zero_copy_asked


@dataclass(frozen=True)
class AskedLinks:
    """`connections` of each link; None: as many as fit its rate. Each rank has its own threads, and
    sends without copy or not."""

    encrypted: bool = False
    transport: str = TCP
    connections: int | None = None
    link_threads: bool = False
    reduce_threads: int = 0
    zero_copy: str = "off"

    def version(self, sources: str) -> str:
        """The wire_version() of ranks whose backend was built from `sources`."""
        return wire_version(
            sources,
            encrypted=self.encrypted,
            transport=self.transport,
            connections=self.connections,
        )


PLAIN = AskedLinks()


def asked_links(extension: Any) -> AskedLinks:
    """Raises FabricError for what cannot be."""
    encrypted = encryption_asked()
    transport = transport_asked(extension, encrypted=encrypted)
    return AskedLinks(
        encrypted,
        transport,
        connections_asked(transport),
        link_threads_asked(transport, encrypted=encrypted),
        reduce_threads_asked(),
        zero_copy_asked(transport, encrypted=encrypted),
    )
