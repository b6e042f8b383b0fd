"""Capital cost of a network, from the price table of the TopoOpt paper (Table 2, Appendix G).

A Topology is taken apart into NICs, transceivers, ports and fibres:

- A server with one port has a NIC of its own; ports of servers with several share NICs of two ("two
  2-port NICs as one 4-port NIC").
- One transceiver per end of a cable, one switch port per end at a switch. Rates between those of
  the table are interpolated; above 100 Gb/s transceivers, switch ports and the fibres between them
  are lanes of 100 Gb/s, and NICs above 200 Gb/s are several of 200 ("we use more 100 Gbps ports and
  fibers").
- Through patch panels every port has a fibre, a 1x2 switch and two panel ports, one of them for the
  next job (look-ahead); through optical circuit switches a fibre and one port. Neither grows with
  the rate ("an inherent advantage of optics").
- A fibre costs 30 cents a metre and is 500 m long: the mean of 0 to 1000 m.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from torch_topoopt.architectures import fat_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.architectures.topology import NodeLink, Topology
    from torch_topoopt.plan import Cluster

Table = tuple[tuple[float, float], ...]  # (Gb/s, dollars), ascending


@dataclass(frozen=True)
class Prices:
    """Dollars apiece; rate-dependent prices are tables."""

    nic: Table = ((10, 185), (25, 185), (40, 354), (100, 678), (200, 815))
    transceiver: Table = ((10, 20), (25, 39), (40, 39), (100, 99))
    switch_port: Table = ((10, 94), (25, 144), (40, 144), (100, 187))
    panel_port: float = 100.0
    ocs_port: float = 520.0
    selector: float = 25.0
    fibre_per_m: float = 0.30


TABLE_2 = Prices()
FIBRE_M = 500.0
_PORTS_PER_NIC = 2
_LANE_GBPS = 100.0
_PARTLESS = ("trace", "inside")


@dataclass(frozen=True)
class Cost:
    """Dollars, by kind of part."""

    nics: float
    transceivers: float
    switch_ports: float
    panel_ports: float
    ocs_ports: float
    selectors: float
    fibres: float

    @property
    def total(self) -> float:
        return math.fsum(vars(self).values())


@dataclass(frozen=True)
class Parts:
    """The numbers of parts: those with a rate by their Gb/s."""

    nics: Mapping[float, int]
    transceivers: Mapping[float, int]
    switch_ports: Mapping[float, int]
    switch_fibres: Mapping[float, int]
    panel_ports: int
    ocs_ports: int
    selectors: int
    fibres: int

    def at(self, gbps: float) -> Parts:
        """The same parts, all at one rate."""

        def same(counts: Mapping[float, int]) -> dict[float, int]:
            return {gbps: sum(counts.values())}

        return replace(
            self,
            nics=same(self.nics),
            transceivers=same(self.transceivers),
            switch_ports=same(self.switch_ports),
            switch_fibres=same(self.switch_fibres),
        )

    def cost(self, prices: Prices = TABLE_2) -> Cost:
        fibre = prices.fibre_per_m * FIBRE_M

        def priced(counts: Mapping[float, int], price: Callable[[float], float]) -> float:
            return math.fsum(count * price(gbps) for gbps, count in counts.items())

        lanes = priced(self.switch_fibres, lambda gbps: max(1.0, gbps / _LANE_GBPS))
        return Cost(
            nics=priced(self.nics, lambda gbps: price_at(prices.nic, gbps)),
            transceivers=priced(self.transceivers, lambda gbps: price_at(prices.transceiver, gbps)),
            switch_ports=priced(self.switch_ports, lambda gbps: price_at(prices.switch_port, gbps)),
            panel_ports=self.panel_ports * prices.panel_port,
            ocs_ports=self.ocs_ports * prices.ocs_port,
            selectors=self.selectors * prices.selector,
            fibres=(self.fibres + lanes) * fibre,
        )


def price_at(table: Table, gbps: float) -> float:
    """Interpolated in `table`; below it the lowest price, above it several of the fastest."""
    if gbps <= table[0][0]:
        return table[0][1]
    for (low, below), (high, above) in pairwise(table):
        if gbps <= high:
            return below + (above - below) * (gbps - low) / (high - low)
    return table[-1][1] * gbps / table[-1][0]


def through_optics(topology: Topology, link: NodeLink) -> bool:
    """Whether a cable runs through the optics of `topology`, if any: cables between two servers,
    or two switches, do; cables between a server and a switch never do."""
    same = (link.source < topology.servers) == (link.target < topology.servers)
    return same and topology.optics != "none"


def parts_of(topology: Topology) -> Parts:
    """The parts of `topology`. Board traces and links inside a chassis are not parts."""
    servers = topology.servers
    out: Counter[tuple[int, float, str]] = Counter()
    into: Counter[tuple[int, float, str]] = Counter()
    for link in topology.links:
        if link.medium in _PARTLESS:
            continue
        way: str = topology.optics if through_optics(topology, link) else "plain"
        out[link.source, link.gbps, way] += 1
        into[link.target, link.gbps, way] += 1
    ports = {key: max(out[key], into[key]) for key in out | into}
    at_servers: Counter[tuple[int, float]] = Counter()
    transceivers: Counter[float] = Counter()
    switch_ports: Counter[float] = Counter()
    optical: Counter[str] = Counter()
    for (node, gbps, way), count in ports.items():
        transceivers[gbps] += count
        optical[way] += count
        if node < servers:
            at_servers[node, gbps] += count
        else:
            switch_ports[gbps] += count
    nics: Counter[float] = Counter()
    for (_, gbps), count in at_servers.items():
        nics[gbps] += math.ceil(count / _PORTS_PER_NIC)
    switch_fibres, plain_ends = _plain_fibres(topology)
    return Parts(
        nics=nics,
        transceivers=transceivers,
        switch_ports=switch_ports,
        switch_fibres=switch_fibres,
        panel_ports=2 * optical["patch-panel"],
        ocs_ports=optical["ocs"],
        selectors=optical["patch-panel"],
        fibres=plain_ends // 2 + optical["patch-panel"] + optical["ocs"],
    )


def _plain_fibres(topology: Topology) -> tuple[Counter[float], int]:
    """Cables to a switch without optics, by rate; ends of server cables without optics."""
    servers = topology.servers
    ends: Counter[float] = Counter()
    between_servers = 0
    for link in topology.links:
        if link.medium in _PARTLESS:
            continue
        at_switch = (link.source >= servers) + (link.target >= servers)
        if at_switch == 1 or (at_switch == 2 and topology.optics == "none"):
            ends[link.gbps] += 1
        elif at_switch == 0 and topology.optics == "none":
            between_servers += 1
    per_cable = 2 if topology.duplex else 1
    return Counter({gbps: count // per_cable for gbps, count in ends.items()}), between_servers


UNPRICED = ("sip-ml",)  # Table 2 has no price for its parts


def capital_cost(topology: Topology, cluster: Cluster, prices: Prices = TABLE_2) -> Cost | None:
    """Dollars of `topology`; None for a kind whose parts the table does not price.

    The ideal switch is estimated by a full-bisection fat-tree of the same rate (section 5.2).
    """
    if topology.architecture in UNPRICED:
        return None
    return parts_of(as_priced(topology, cluster)).cost(prices)


def as_priced(topology: Topology, cluster: Cluster) -> Topology:
    """`topology`; for the ideal switch, which is not for sale, the fat-tree of `capital_cost`."""
    if topology.architecture != "ideal-switch":
        return topology
    gbps = topology.links[0].gbps if topology.links else cluster.link_gbps
    return fat_tree.build(cluster, server_gbps=gbps)


def equal_cost_gbps(cluster: Cluster, budget: float, prices: Prices = TABLE_2) -> float:
    """The rate of the links of the full-bisection fat-tree that costs `budget` (section 5.1, d B').

    Raises ValueError if even the slowest links of the table cost more.
    """
    parts = parts_of(fat_tree.build(cluster))
    low = prices.switch_port[0][0]
    least = parts.at(low).cost(prices).total
    if budget < least:
        raise ValueError(
            f"budget: {budget:.0f} dollars; a fat-tree for {cluster.servers} servers costs at "
            f"least {least:.0f}"
        )
    high = 2 * low
    while parts.at(high).cost(prices).total < budget:
        high *= 2
    for _ in range(60):  # the cost never falls with the rate
        middle = (low + high) / 2
        if parts.at(middle).cost(prices).total <= budget:
            low = middle
        else:
            high = middle
    return low
