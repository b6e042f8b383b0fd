"""Capital cost of switches and cables, from the prices of the HammingMesh paper (III-C).

Ports of accelerators and traces of boards are part of the accelerators. Everything else is counted
in a Topology. A link k times as fast as a port counts as k cables in k equal planes, and a switch
with such links as k switches. Switches in one chassis count as one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import networkx as nx

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import NodeLink, Topology

Material = Literal["trace", "dac", "aoc", "inside"]


@dataclass(frozen=True)
class CablePrices:
    """Dollars a piece: a switch of 64 ports, an optical cable of 20 m, a copper cable of 5 m."""

    switch: float = 14280.0
    aoc: float = 603.0
    dac: float = 272.0


COLFAX_2022 = CablePrices()


@dataclass(frozen=True)
class CableParts:
    """The numbers of parts, in all planes."""

    switches: int
    dacs: int
    aocs: int
    traces: int

    def cost(self, prices: CablePrices = COLFAX_2022) -> float:
        """Dollars of all of them; traces are free."""
        parts = (
            self.switches * prices.switch,
            self.dacs * prices.dac,
            self.aocs * prices.aoc,
        )
        return math.fsum(parts)


def material(link: NodeLink, servers: int) -> Material:
    """The medium of the link, where the link itself does not name it (`NodeLink`)."""
    if link.medium != "usual":
        return link.medium
    return "aoc" if min(link.source, link.target) >= servers else "dac"


def cable_parts(topology: Topology, port_gbps: float) -> CableParts:
    """Counts the parts of `topology`, whose ports have `port_gbps`.

    Raises ValueError for a network that is not of duplex cables, or runs through optics, which have
    no price here."""
    if not topology.duplex or topology.optics != "none":
        raise ValueError(
            f"topology: {topology.architecture} has "
            f"{'optical switches' if topology.duplex else 'simplex links'}, without a price here"
        )
    links: Counter[Material] = Counter()
    planes: dict[int, int] = defaultdict(lambda: 1)
    chassis: nx.Graph[int] = nx.Graph()
    chassis.add_nodes_from(range(topology.servers, topology.nodes))
    for link in topology.links:
        made_of = material(link, topology.servers)
        copies = math.ceil(link.gbps / port_gbps - 1e-9)
        links[made_of] += copies
        planes[link.source] = max(planes[link.source], copies)
        if made_of == "inside":
            chassis.add_edge(link.source, link.target)
    return CableParts(
        switches=sum(max(planes[k] for k in one) for one in nx.connected_components(chassis)),
        dacs=links["dac"] // 2,
        aocs=links["aoc"] // 2,
        traces=links["trace"] // 2,
    )
