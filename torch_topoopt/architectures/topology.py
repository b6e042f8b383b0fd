"""Topology: any network of servers and switches, for simulators and cost figures.

A Plan's Network has servers only. Here nodes 0..servers-1 are servers and the others are switches;
links are directed and have rates of their own. Bytes of a pair without listed paths are spread over
all shortest paths (per-packet or many-flow ECMP). Each node splits them by the rates of the next
links. A server with several links relays for others only in networks without switches.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from torch_topoopt.plan.checks import unreachable
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.network import Ring, rings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Cluster

Optics = Literal["none", "patch-panel", "ocs"]
Medium = Literal["usual", "trace", "dac", "aoc", "inside"]


@dataclass(frozen=True)
class NodeLink:
    """A directed link between two nodes; several may join the same two.

    `medium` is a board's "trace", a "dac" (copper cable), an "aoc" (optical cable), or a connection
    "inside" the chassis of both switches. The "usual" one is a dac from a server and an aoc between
    switches.
    """

    source: int
    target: int
    gbps: float
    latency_s: float
    medium: Medium = "usual"


@dataclass(frozen=True)
class NodePath:
    """Nodes from a source to a destination; `weight` is its share of the pair's bytes."""

    nodes: tuple[int, ...]
    weight: float


@dataclass(frozen=True)
class ChannelRule:
    """The rules of adaptive routing beyond shortest paths; all fields except `channels` and
    `detours` are indices of links.

    A packet starts on virtual channel 0 of `channels`, moves to the next one with every link that
    `raises`, and keeps its channel otherwise. After a link of `last` it may take only links of
    `last` or `lifts`. With the links to the north of a mesh as `last` that is north-last routing
    (Glass and Ni, ISCA 1992). With `detours`, disjoint groups of nodes, a packet may go through a
    group first if queues favour it (UGAL-L; Kim et al., ISCA 2008); then every link has to raise.
    """

    channels: int = 1
    raises: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    lifts: tuple[int, ...] = ()
    detours: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class ServerGrid:
    """Servers in rows and columns, each of which is a cycle: server i is in row i // `columns` and
    column i % `columns`. Boards of `board_rows` x `board_columns` neighbours divide the grid."""

    rows: int
    columns: int
    board_rows: int = 1
    board_columns: int = 1

    @property
    def servers(self) -> int:
        return self.rows * self.columns

    def number(self, row: int, column: int) -> int:
        """The server in `row` and `column`."""
        return row * self.columns + column

    def lines(self, servers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The rows of `servers` that are a rectangle, not necessarily of adjacent rows or columns;
        none unless it has at least two rows and two columns."""
        rows = sorted({server // self.columns for server in servers})
        columns = sorted({server % self.columns for server in servers})
        if min(len(rows), len(columns)) < 2 or len(rows) * len(columns) != len(servers):
            return ()
        return tuple(tuple(self.number(row, column) for column in columns) for row in rows)


@dataclass(frozen=True)
class Reconfiguration:
    """Rules of circuits that follow the demand: measured every `window_s`, moved in `delay_s`
    without any traffic, chosen by Algorithm 5 of the TopoOpt paper, halving or not."""

    window_s: float
    delay_s: float
    halve: bool
    forwarding: bool

    def validate(self) -> Self:
        """Returns self, or raises ValueError: field, value, and the valid range."""
        if not 0 < self.window_s < math.inf:
            raise ValueError(f"window_s: {self.window_s} is not a finite number above 0")
        if not 0 <= self.delay_s < math.inf:
            raise ValueError(f"delay_s: {self.delay_s} is not a finite number from 0 on")
        return self


@dataclass(frozen=True)
class Topology:
    """A network of kind `architecture`.

    `rings` carry an AllReduce of all servers; one of fewer servers uses the same orders without the
    others, unless `group_rings` has rings of its own. `paths` are between attachment
    nodes: the servers themselves, or the switches of those with a single link. `server_ports` and
    `switch_ports` limit the ports of a server and of a switch. Cables join the ports directly
    (`optics` "none") or run through patch panels or optical circuit switches. With a
    `reconfiguration`, `links` are the initial ones. `channel_rule` keeps packets that choose their
    own paths from deadlocks (deadlock.py). `grid` gives the rows and columns of servers.
    """

    architecture: str
    servers: int
    nodes: int
    links: tuple[NodeLink, ...]
    rings: tuple[Ring, ...]
    server_ports: int
    switch_ports: int = 0
    paths: tuple[NodePath, ...] = ()
    group_rings: tuple[tuple[Ring, ...], ...] = ()
    optics: Optics = "none"
    duplex: bool = True
    reconfiguration: Reconfiguration | None = None
    channel_rule: ChannelRule | None = None
    grid: ServerGrid | None = None

    def validate(self) -> Self:
        """Returns self, or raises DocumentError for the first of these rules that is broken.

        Links join different nodes that exist, at finite rates above 0; every server reaches every
        other; no node has more cables than ports; on duplex every link has a twin; rings visit each
        server of their group once and shares sum to 1; paths use existing links, never twice a
        node, and their weights sum to 1 per pair.
        """
        _check_links(self)
        _check_ports(self)
        adjacent = {(link.source, link.target) for link in self.links}
        lost = unreachable(range(self.servers), adjacent)
        if lost is not None:
            raise DocumentError(f"links: server 0 and node {lost} do not reach each other")
        _check_rings(self)
        _check_paths(self)
        return self

    @property
    def switches(self) -> int:
        return self.nodes - self.servers

    @property
    def is_direct(self) -> bool:
        """Whether links join servers only, and stay as they are."""
        return not self.switches and self.reconfiguration is None


@dataclass
class Wires:
    """Links under construction; every cable is two of them."""

    latency_s: float
    links: list[NodeLink] = field(default_factory=list)

    @classmethod
    def of(cls, cluster: Cluster, *, pair_tables: bool = True) -> Wires:
        """No links yet; the latency is that of `cluster`. Raises DocumentError if that is invalid
        as in `Cluster.validate`."""
        cluster.validate(any_degree=True, pair_tables=pair_tables)
        return cls(cluster.link_latency_s)

    def cable(self, a: int, b: int, gbps: float, count: int = 1, medium: Medium = "usual") -> None:
        """`count` duplex cables between two nodes."""
        there = NodeLink(a, b, gbps, self.latency_s, medium)
        back = NodeLink(b, a, gbps, self.latency_s, medium)
        self.links += (there, back) * count

    def to_leaves(
        self, below: Sequence[int], first: int, down: int, gbps: float, medium: Medium = "usual"
    ) -> None:
        """A cable from each of `below` to the switches from `first` on, `down` to a switch."""
        for port, node in enumerate(below):
            self.cable(node, first + port // down, gbps, medium=medium)


def link_gbps_of(cluster: Cluster, server_gbps: float | None) -> float:
    """The rate of a server's only link to a switch: `server_gbps`, or that of all its ports.

    Raises ValueError unless it is above 0."""
    if server_gbps is None:
        return cluster.degree * cluster.link_gbps
    if not server_gbps > 0:
        raise ValueError(f"server_gbps: {server_gbps} is not above 0")
    return server_gbps


def direct(name: str, cluster: Cluster, wires: Wires, **fields: Any) -> Topology:
    """The network of `wires` between the servers' own ports; AllReduce in the order of numbers,
    both ways, unless `fields` say otherwise. Raises DocumentError as `Topology.validate`."""
    given = {"rings": rank_order(cluster.servers, both_ways=True), **fields}
    return Topology(
        architecture=name,
        servers=cluster.servers,
        nodes=cluster.servers,
        links=tuple(wires.links),
        server_ports=cluster.degree,
        **given,
    ).validate()


def switched(
    name: str,
    cluster: Cluster,
    wires: Wires,
    *,
    nodes: int,
    switch_ports: int,
    server_ports: int = 1,
) -> Topology:
    """The network of `wires` over switches; AllReduce in the order of numbers, one way. Raises
    DocumentError as `Topology.validate`."""
    return Topology(
        architecture=name,
        servers=cluster.servers,
        nodes=nodes,
        links=tuple(wires.links),
        rings=rank_order(cluster.servers, both_ways=False),
        server_ports=server_ports,
        switch_ports=switch_ports,
    ).validate()


def rank_order(servers: int, *, both_ways: bool) -> tuple[Ring, ...]:
    """The servers in the order of their numbers: the ring of a topology-unaware library."""
    return rings_of([tuple(range(servers))], both_ways=both_ways)


def _check_links(topology: Topology) -> None:
    if not 1 <= topology.servers <= topology.nodes:
        raise DocumentError(f"servers: {topology.servers} is not in 1..{topology.nodes}")
    for i, link in enumerate(topology.links):
        for node in (link.source, link.target):
            if not 0 <= node < topology.nodes:
                raise DocumentError(f"links[{i}]: node {node} is not in 0..{topology.nodes - 1}")
        if link.source == link.target:
            raise DocumentError(f"links[{i}]: joins node {link.source} to itself")
        if not 0 < link.gbps < math.inf:
            raise DocumentError(f"links[{i}].gbps: {link.gbps} is not a finite number above 0")
        if not 0 <= link.latency_s < math.inf:
            raise DocumentError(
                f"links[{i}].latency_s: {link.latency_s} is not a finite number from 0 on"
            )


def _check_ports(topology: Topology) -> None:
    out, into = [0] * topology.nodes, [0] * topology.nodes
    twins: dict[tuple[int, int, float], int] = defaultdict(int)
    for link in topology.links:
        out[link.source] += 1
        into[link.target] += 1
        twins[link.source, link.target, link.gbps] += 1
    for node in range(topology.nodes):
        kind, limit = "server", topology.server_ports
        if node >= topology.servers:
            kind, limit = "switch", topology.switch_ports
        used = max(out[node], into[node])
        if used > limit:
            raise DocumentError(f"links: {kind} {node} has {used} cables and {limit} ports")
    if topology.duplex:
        for (source, target, gbps), count in twins.items():
            if twins.get((target, source, gbps), 0) != count:
                raise DocumentError(
                    f"links: {count} from node {source} to {target}, but not as many back; a "
                    "cable carries both directions"
                )


def _check_rings(topology: Topology) -> None:
    everyone = tuple(range(topology.servers))
    if topology.servers > 1 and not topology.rings:
        raise DocumentError("rings: none for the AllReduce of all servers")
    for rings in (topology.rings, *topology.group_rings):
        if not rings:
            continue
        members = sorted(rings[0].servers)
        if rings is topology.rings and tuple(members) != everyone:
            raise DocumentError("rings: must visit every server")
        for ring in rings:
            if sorted(ring.servers) != members or len(set(members)) != len(members):
                raise DocumentError("rings: must visit each server of their group once")
            if not (members[0] >= 0 and members[-1] < topology.servers):
                raise DocumentError(f"rings: a server is not in 0..{topology.servers - 1}")
        total = sum(ring.share for ring in rings)
        if abs(total - 1) > 1e-9:
            raise DocumentError(f"rings: shares sum to {total}, not 1")


def _check_paths(topology: Topology) -> None:
    adjacent = {(link.source, link.target) for link in topology.links}
    weights: dict[tuple[int, int], float] = defaultdict(float)
    for i, path in enumerate(topology.paths):
        nodes = path.nodes
        if len(nodes) < 2 or len(set(nodes)) != len(nodes):
            raise DocumentError(f"paths[{i}]: {list(nodes)} is not a loop-free path")
        for hop in itertools.pairwise(nodes):
            if hop not in adjacent:
                raise DocumentError(f"paths[{i}]: there is no link from node {hop[0]} to {hop[1]}")
        if not path.weight > 0:
            raise DocumentError(f"paths[{i}].weight: {path.weight} is not above 0")
        weights[nodes[0], nodes[-1]] += path.weight
    for (source, target), total in weights.items():
        if abs(total - 1) > 1e-9:
            raise DocumentError(
                f"paths: weights from node {source} to {target} sum to {total}, not 1"
            )
