"""Connects leaders of unlinked servers over addresses that the hosts between forward.

If a fabric's hosts forward in the kernel (Wiring.forwarded), ranks relay nothing: such a pair has a
TCP connection between its server addresses, and the hosts' routes choose the links of its packets.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from torch_topoopt.links import sockets
from torch_topoopt.links.identity import Kind
from torch_topoopt.links.rank_port import RankPort

if TYPE_CHECKING:
    from torch_topoopt.links.identity import Ends
    from torch_topoopt.plan import Plan


def unlinked_servers(plan: Plan, server: int) -> tuple[int, ...]:
    """The servers without a link to or from `server`, ascending."""
    linked = {server}
    for link in plan.network.links:
        if server in (link.source, link.target):
            linked |= {link.source, link.target}
    return tuple(other for other in range(plan.cluster.servers) if other not in linked)


class ForwardedPort(RankPort):
    """The connections of one leader with leaders without a link; `address` is its server's.

    Each sends at most `gbps`, the rate of a link, if known: the first link would drop the excess.
    Raises OSError if it cannot listen at the address.
    """

    kind = Kind.FORWARDED

    def __init__(self, rank: int, address: str, gbps: float | None = None) -> None:
        self._address = address
        self._gbps = gbps
        listener = sockets.listen(address, 0)
        self.name = f"{address}:{listener.getsockname()[1]}"
        super().__init__(rank, listener)

    def _dial(self, name: str, timeout_s: float) -> socket.socket:
        address, _, port = name.rpartition(":")
        connection = socket.create_connection(
            (address, int(port)), timeout_s, source_address=(self._address, 0)
        )
        sockets.prepare_forwarded(connection, self._gbps)
        return connection

    def _admit(self, connection: socket.socket, ends: Ends) -> None:
        sockets.prepare_forwarded(connection, self._gbps)

    def _hint(self) -> str:
        return "; the hosts between must forward (ip_forward, routes, no FORWARD DROP)"

    @staticmethod
    def _describe(source: int, target: int) -> str:
        return f"forwarded connection from rank {source} to rank {target}"
