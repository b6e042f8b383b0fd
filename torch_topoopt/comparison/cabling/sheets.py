"""Sheets for plugging: cables with their ends, their labels, and the resulting cluster file."""

from __future__ import annotations

import csv
import io
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.fabric.cluster_file.cluster_file import VERSION, ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.plan.units import format_gbps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Cluster, Network

DEFAULT_SUBNET = ipaddress.IPv4Network("10.201.0.0/16")
_CABLE_PREFIX = 30  # one subnet per cable, two addresses, as in MLX's hostfiles


@dataclass(frozen=True)
class CableEnd:
    """One end of a cable: the names of server and port, and the port's address."""

    server: str
    port: str
    address: str

    @property
    def place(self) -> str:
        return f"{self.server}:{self.port}"


@dataclass(frozen=True)
class LabelledCable:
    """A cable with its label, "C01", and its ends; `servers` and `ports` are the plan's numbers."""

    JSON_FIELDS: ClassVar = ("label", "ends", "gbps")

    label: str
    servers: tuple[int, int]
    ports: tuple[int, int]
    ends: tuple[CableEnd, CableEnd]
    gbps: float


@dataclass(frozen=True)
class Names:
    """The names of servers and ports; `interfaces` are the kernel's names of the ports, the same
    on every server (none: unknown)."""

    servers: tuple[str, ...]
    interfaces: tuple[str, ...] = ()

    def port(self, number: int) -> str:
        return f"p{number}"


def cables_of(
    cluster: Cluster,
    network: Network,
    names: Names,
    subnet: ipaddress.IPv4Network = DEFAULT_SUBNET,
) -> tuple[LabelledCable, ...]:
    """The cables of a duplex network in the order of their lower ends, one /30 of `subnet` each.

    Raises ValueError if `subnet` has fewer of these than there are cables.
    """
    there = sorted(
        (k.source, k.source_port, k.target, k.target_port)
        for k in network.links
        if k.source < k.target
    )
    room = 0 if subnet.prefixlen > _CABLE_PREFIX else 2 ** (_CABLE_PREFIX - subnet.prefixlen)
    if len(there) > room:
        raise ValueError(
            f"subnet: {subnet} has {room} subnets of two addresses for {len(there)} cables"
        )
    digits = max(2, len(str(len(there))))
    found = []
    for number, (a, a_port, b, b_port) in enumerate(there):
        base = int(subnet.network_address) + 4 * number
        ends = tuple(
            CableEnd(
                names.servers[server],
                names.port(port),
                f"{ipaddress.IPv4Address(base + 1 + i)}/{_CABLE_PREFIX}",
            )
            for i, (server, port) in enumerate(((a, a_port), (b, b_port)))
        )
        rate = min(cluster.port_rate(a, a_port), cluster.port_rate(b, b_port))
        label = f"C{number + 1:0{digits}}"
        found.append(LabelledCable(label, (a, b), (a_port, b_port), (ends[0], ends[1]), rate))
    return tuple(found)


def cluster_file(
    cluster: Cluster, cables: Sequence[LabelledCable], names: Names, title: str
) -> ClusterFile:
    """The file for `topoopt run --cluster` and `plan --cluster`, without ports that have no cable.

    The control addresses are the servers' names. Raises DocumentError for names that a cluster file
    cannot have.
    """
    ports: list[dict[int, PortEntry]] = [{} for _ in range(cluster.servers)]
    for cable in cables:
        for server, port, end in zip(cable.servers, cable.ports, cable.ends, strict=True):
            interface = names.interfaces[port] if names.interfaces else None
            ports[server][port] = PortEntry(end.port, end.address, cable.gbps, interface)
    servers = tuple(
        ServerEntry(
            name,
            name,
            cluster.accelerators_per_server,
            ports=tuple(own[port] for port in sorted(own)),
        )
        for name, own in zip(names.servers, ports, strict=True)
    )
    ends = tuple((cable.ends[0].place, cable.ends[1].place) for cable in cables)
    return ClusterFile(VERSION, title, servers, ends).validate()


def cables_csv(cables: Sequence[LabelledCable]) -> str:
    """One line per cable."""
    rows = [
        (
            c.label,
            *(field for end in c.ends for field in (end.server, end.port, end.address)),
            format_gbps(c.gbps),
        )
        for c in cables
    ]
    head = ("cable", "server_a", "port_a", "address_a", "server_b", "port_b", "address_b", "rate")
    return _csv((head, *rows))


def labels_csv(cables: Sequence[LabelledCable]) -> str:
    """One line per end of a cable: its own socket, and the far end."""
    rows = [
        (c.label, here.place, there.place) for c in cables for here, there in (c.ends, c.ends[::-1])
    ]
    return _csv((("cable", "this_end", "other_end"), *rows))


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
