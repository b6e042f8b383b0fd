"""Concrete ports for links: each transmitter and each receiver is used once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Cluster, Link

if TYPE_CHECKING:
    from collections.abc import Sequence


def ports_per_ring(cluster: Cluster, size: int) -> int:
    """Ports that every member of a group of `size` servers spends on one stride.

    Duplex: two, towards both neighbours (strides p and size - p), except for a pair, whose one
    cable is the ring. Simplex: one transmitter (and one receiver).
    """
    return 2 if cluster.ports == "duplex" and size > 2 else 1


class PortAllocator:
    """The links wired so far and the ports that are still free, in the order of the calls.

    Ports are handed out from 0 upwards, the fastest first where they are not alike, so that rings
    get links of one rate. On a duplex cluster transmitter and receiver of a port are used together;
    on a simplex cluster they are counted apart.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.links: list[Link] = []
        self.duplex = cluster.ports == "duplex"
        self._next_transmitter = [0] * cluster.servers
        self._next_receiver = self._next_transmitter if self.duplex else [0] * cluster.servers
        self._order = [
            sorted(range(cluster.degree), key=lambda port: -cluster.port_rate(server, port))
            for server in range(cluster.servers)
        ]

    def free_transmitters(self, server: int) -> int:
        return self.cluster.degree - self._next_transmitter[server]

    def free_receivers(self, server: int) -> int:
        return self.cluster.degree - self._next_receiver[server]

    def free_ports(self, servers: Sequence[int]) -> int:
        """Ports whose transmitter and receiver are free at every one of `servers`."""
        return min(min(self.free_transmitters(s), self.free_receivers(s)) for s in servers)

    def connect(self, source: int, target: int) -> None:
        """Wires a free port of `source` to a free port of `target`; both directions on duplex.

        Raises ValueError if there is no free port.
        """
        if not self.free_transmitters(source) or not self.free_receivers(target):
            raise ValueError(f"no free port for a link from server {source} to {target}")
        source_port = self._take(self._next_transmitter, source)
        target_port = self._take(self._next_receiver, target)
        self._add(Link(source, source_port, target, target_port))

    def add_stride(self, members: Sequence[int], stride: int) -> None:
        """Wires member i to member (i + stride) mod k for all i.

        On duplex every member gives one port to its successor and the next one to its predecessor.
        The stride need not be coprime with k; then it forms several rings.

        Raises ValueError if a member has no free port.
        """
        size = len(members)
        if not self.duplex or size == 2:
            for i in range(1 if self.duplex else size):
                self.connect(members[i], members[(i + stride) % size])
            return
        if self.free_ports(members) < 2:
            raise ValueError(f"no two free ports at every server of {list(members)}")
        outgoing, incoming = {}, {}
        for server in members:
            outgoing[server] = self._take(self._next_transmitter, server)
            incoming[server] = self._take(self._next_transmitter, server)
        for i, server in enumerate(members):
            target = members[(i + stride) % size]
            self._add(Link(server, outgoing[server], target, incoming[target]))

    def _take(self, next_port: list[int], server: int) -> int:
        next_port[server] += 1
        return self._order[server][next_port[server] - 1]

    def _add(self, link: Link) -> None:
        self.links.append(link)
        if self.duplex:
            self.links.append(link.reverse)
