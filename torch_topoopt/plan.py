"""Plan: how a cluster is split, wired and routed for one training job.

Algorithms write a Plan; simulators, fabric drivers, exporters and the backend read it. Servers and
ports are numbered from 0. A `Link` is directed; on a duplex cluster a cable is two links that use
the same two ports in opposite directions. Every producer calls `validate()` before it returns a
Plan, and every consumer trusts a Plan that it has loaded.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from torch_topoopt.data_model import Document, DocumentError

BYTES_PER_GBPS = 1e9 / 8  # bytes per second of one Gb/s


@dataclass(frozen=True)
class Cluster:
    """The machines: `servers` with `degree` ports each, every port of `link_gbps` per direction.

    `ports` is "duplex" (a port carries both directions: NICs, copper cables) or "simplex" (separate
    transmit and receive fibres, each switched on its own; degree counts transmitters).
    `link_latency_s` is paid once per hop. `accelerator` names an entry of the accelerator table.
    """

    servers: int
    degree: int
    link_gbps: float
    ports: Literal["duplex", "simplex"] = "duplex"
    link_latency_s: float = 1e-6
    accelerators_per_server: int = 1
    accelerator: str = "cpu-core"

    def validate(self, *, any_degree: bool = False) -> Self:
        """Returns self, or raises DocumentError: field, value, and what would be right.

        With `any_degree`, also a cluster that TopologyFinder could not wire.
        """
        if self.servers < 1:
            raise DocumentError(f"servers: {self.servers} is not at least 1")
        if self.degree < 1:
            raise DocumentError(f"degree: {self.degree} is not at least 1")
        if not any_degree:
            self._check_degree()
        if not 0 < self.link_gbps < math.inf:
            raise DocumentError(f"link_gbps: {self.link_gbps} is not a finite number above 0")
        if not 0 <= self.link_latency_s < math.inf:
            raise DocumentError(
                f"link_latency_s: {self.link_latency_s} is not a finite number from 0 on"
            )
        if self.accelerators_per_server < 1:
            raise DocumentError(
                f"accelerators_per_server: {self.accelerators_per_server} is not at least 1"
            )
        return self

    def _check_degree(self) -> None:
        if self.servers > 1 and self.degree > self.servers - 1:
            raise DocumentError(
                f"degree: {self.degree} ports per server cannot reach {self.servers - 1} other "
                f"servers once each; use a degree of at most {self.servers - 1}"
            )
        if self.ports == "duplex" and self.degree % 2 and self.servers > 2:
            near = (self.degree - 1, self.degree + 1)
            even = " or ".join(str(d) for d in near if 2 <= d <= self.servers - 1)
            raise DocumentError(
                f"degree: {self.degree} is odd; a duplex ring needs two ports per server, "
                f"so use {even}, or simplex ports"
            )

    @property
    def link_bytes_per_s(self) -> float:
        return self.link_gbps * BYTES_PER_GBPS


@dataclass(frozen=True)
class Link:
    """A directed connection from a server's port to another server's port."""

    source: int
    source_port: int
    target: int
    target_port: int

    @property
    def reverse(self) -> Link:
        """The other direction of the same cable."""
        return Link(self.target, self.target_port, self.source, self.source_port)


@dataclass(frozen=True)
class Ring:
    """A cyclic order of a group's servers; data moves from servers[i] to servers[i + 1].

    `share` is the fraction of each AllReduce's bytes that this ring carries. Consecutive servers
    without a link between them are reached over routes (coin-change, paper section 4.3).
    """

    servers: tuple[int, ...]
    share: float


@dataclass(frozen=True)
class Group:
    """The servers of one AllReduce, and the rings that carry it. Shares sum to 1."""

    servers: tuple[int, ...]
    rings: tuple[Ring, ...]


@dataclass(frozen=True)
class Route:
    """A list of servers from source to destination; `weight` is its part of the pair's bytes."""

    servers: tuple[int, ...]
    weight: float


@dataclass(frozen=True)
class Network:
    """The network half of a Plan.

    `routes` holds the routes of every ordered pair that has no link; a pair with a link and no
    route entry uses its links, evenly.
    """

    links: tuple[Link, ...]
    groups: tuple[Group, ...]
    routes: tuple[Route, ...]

    def routes_by_pair(self) -> dict[tuple[int, int], tuple[Route, ...]]:
        """All ordered pairs that can exchange bytes -> their routes, direct links included."""
        table: dict[tuple[int, int], tuple[Route, ...]] = {}
        for link in self.links:
            table[link.source, link.target] = (Route((link.source, link.target), 1.0),)
        listed: dict[tuple[int, int], list[Route]] = {}
        for route in self.routes:
            listed.setdefault((route.servers[0], route.servers[-1]), []).append(route)
        table.update({pair: tuple(routes) for pair, routes in listed.items()})
        return table


@dataclass(frozen=True)
class CostModel:
    """What messages cost beside the time of their bytes; collectives choose their algorithm by it.

    A message takes `message_s` to hand over and take, and `hop_s` on every link of its way; adding
    one tensor to another takes `reduce_s_per_byte`.
    """

    message_s: float
    hop_s: float
    reduce_s_per_byte: float

    def validate(self) -> Self:
        """Returns self, or raises DocumentError: field, value, and what would be right."""
        if not 0 < self.message_s < math.inf:
            raise DocumentError(
                f"cost_model.message_s: {self.message_s} is not a finite number above 0"
            )
        for name, value in (("hop_s", self.hop_s), ("reduce_s_per_byte", self.reduce_s_per_byte)):
            if not 0 <= value < math.inf:
                raise DocumentError(f"cost_model.{name}: {value} is not a finite number from 0 on")
        return self


@dataclass(frozen=True)
class GroupDemand:
    """Bytes that one iteration AllReduces among `servers` (of the reduced data, not traffic)."""

    servers: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class PairDemand:
    """Bytes that one iteration sends from `source` to `target` for model parallelism."""

    source: int
    target: int
    size_bytes: int


@dataclass(frozen=True)
class Demand:
    """What one iteration asks of the network: AllReduce groups and the model-parallel matrix."""

    groups: tuple[GroupDemand, ...]
    pairs: tuple[PairDemand, ...]


@dataclass(frozen=True)
class Placement:
    """The servers that share one operator's batch (one server: the whole operator stays there)."""

    operator: str
    servers: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """One round of the alternating optimisation (paper section 4.1), in predicted seconds.

    `strategy_s` is the cost after the strategy search on the old network, `network_s` after
    TopologyFinder rewired for the new strategy; the other two are references for that strategy.
    """

    strategy_s: float
    network_s: float
    single_ring_s: float
    ideal_switch_s: float
    accepted: bool


@dataclass(frozen=True)
class SearchSample:
    """One point of the search curve: after `evaluations`, current and best predicted iteration."""

    evaluations: int
    current_s: float
    best_s: float


@dataclass(frozen=True)
class Prediction:
    """Flow-level prediction for this Plan; `link_bytes[i]` belongs to `network.links[i]`."""

    iteration_s: float
    compute_s: float
    single_ring_s: float
    ideal_switch_s: float
    link_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Plan(Document):
    """A complete, validated plan; `strategy_space` is what the search could choose from.

    A network of `mode` "fixed" was there (cables that people plugged), one of "discovered" was
    found, not chosen: any degree will do, and a discovered plan predicts nothing. Without a
    `cost_model`, a job measures one when it starts.
    """

    KIND: ClassVar[str] = "Plan"
    VERSION: ClassVar[int] = 1

    version: int
    model: str
    batch_size: int
    seed: int
    mode: Literal["paper", "fixed", "discovered"]
    strategy_space: Literal["data-parallel", "full"]
    cluster: Cluster
    network: Network
    demand: Demand
    prediction: Prediction
    rounds: tuple[Round, ...]
    search: tuple[SearchSample, ...]
    strategy: tuple[Placement, ...]
    cost_model: CostModel | None = None

    @classmethod
    def of_network(
        cls,
        cluster: Cluster,
        network: Network,
        demand: Demand,
        *,
        model: str,
        mode: Literal["paper", "fixed", "discovered"] = "paper",
    ) -> Self:
        """A plan that says how servers are wired and routed, and predicts nothing.

        Raises DocumentError if the network does not fit the cluster.
        """
        return cls(
            version=cls.VERSION,
            model=model,
            batch_size=1,
            seed=0,
            mode=mode,
            strategy_space="data-parallel",
            cluster=cluster,
            network=network,
            demand=demand,
            prediction=Prediction(0.0, 0.0, 0.0, 0.0, (0,) * len(network.links)),
            rounds=(),
            search=(),
            strategy=(),
        ).validate()

    def validate(self) -> Self:
        self.cluster.validate(any_degree=self.mode != "paper")
        if self.cost_model is not None:
            self.cost_model.validate()
        validate_network(self.cluster, self.network)
        validate_demand(self.cluster, self.demand)
        for i, placement in enumerate(self.strategy):
            _check_servers(f"strategy[{i}].servers", placement.servers, self.cluster.servers)
        if len(self.prediction.link_bytes) != len(self.network.links):
            raise DocumentError(
                f"prediction.link_bytes: {len(self.prediction.link_bytes)} entries for "
                f"{len(self.network.links)} links"
            )
        return self

    def digest(self) -> str:
        """A short fingerprint; ranks compare it when they connect, so no two plans ever mix."""
        return digest_of(self.to_json())


def digest_of(text: str) -> str:
    """The digest of the plan whose canonical text this is."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_servers(where: str, servers: tuple[int, ...], count: int) -> None:
    if not servers:
        raise DocumentError(f"{where}: empty")
    for server in servers:
        if not 0 <= server < count:
            raise DocumentError(f"{where}: server {server} is not in 0..{count - 1}")
    if len(set(servers)) != len(servers):
        raise DocumentError(f"{where}: {list(servers)} names a server twice")


def _validate_links(cluster: Cluster, links: tuple[Link, ...]) -> None:
    """Each end exists, each transmitter and receiver is used once, duplex links have a twin."""
    transmitters: dict[tuple[int, int], int] = {}
    receivers: dict[tuple[int, int], int] = {}
    for i, link in enumerate(links):
        where = f"network.links[{i}]"
        for server in (link.source, link.target):
            if not 0 <= server < cluster.servers:
                raise DocumentError(f"{where}: server {server} is not in 0..{cluster.servers - 1}")
        for port in (link.source_port, link.target_port):
            if not 0 <= port < cluster.degree:
                raise DocumentError(f"{where}: port {port} is not in 0..{cluster.degree - 1}")
        if link.source == link.target:
            raise DocumentError(f"{where}: connects server {link.source} to itself")
        for used, end in (
            (transmitters, (link.source, link.source_port)),
            (receivers, (link.target, link.target_port)),
        ):
            if end in used:
                raise DocumentError(
                    f"{where}: port {end[1]} of server {end[0]} is already used by "
                    f"network.links[{used[end]}]"
                )
            used[end] = i
    if cluster.ports == "duplex":
        present = set(links)
        for i, link in enumerate(links):
            if link.reverse not in present:
                raise DocumentError(
                    f"network.links[{i}]: a duplex cable needs its other direction, "
                    f"server {link.target} port {link.target_port} to server {link.source} "
                    f"port {link.source_port}"
                )


def _unreachable(count: int, adjacent: set[tuple[int, int]]) -> int | None:
    """A server that server 0 cannot reach, or that cannot reach server 0; None if connected."""
    for flip in (False, True):
        neighbours: dict[int, list[int]] = {}
        for source, target in adjacent:
            a, b = (target, source) if flip else (source, target)
            neighbours.setdefault(a, []).append(b)
        seen = {0}
        queue = deque([0])
        while queue:
            for server in neighbours.get(queue.popleft(), ()):
                if server not in seen:
                    seen.add(server)
                    queue.append(server)
        if len(seen) < count:
            return min(set(range(count)) - seen)
    return None


def _validate_groups(cluster: Cluster, groups: tuple[Group, ...]) -> None:
    for i, group in enumerate(groups):
        where = f"network.groups[{i}]"
        _check_servers(f"{where}.servers", group.servers, cluster.servers)
        if len(group.servers) > 1 and not group.rings:
            raise DocumentError(f"{where}.rings: a group of {len(group.servers)} needs a ring")
        for j, ring in enumerate(group.rings):
            _check_servers(f"{where}.rings[{j}].servers", ring.servers, cluster.servers)
            if set(ring.servers) != set(group.servers):
                raise DocumentError(
                    f"{where}.rings[{j}].servers: must visit each server of the group once"
                )
            if not ring.share > 0:
                raise DocumentError(f"{where}.rings[{j}].share: {ring.share} is not above 0")
        total = sum(ring.share for ring in group.rings)
        if group.rings and abs(total - 1) > 1e-9:
            raise DocumentError(f"{where}.rings: shares sum to {total}, not 1")


def _validate_routes(network: Network, adjacent: set[tuple[int, int]], count: int) -> None:
    weights: dict[tuple[int, int], float] = {}
    for i, route in enumerate(network.routes):
        where = f"network.routes[{i}]"
        _check_servers(f"{where}.servers", route.servers, count)
        if len(route.servers) < 2:
            raise DocumentError(f"{where}.servers: a route needs a source and a destination")
        for hop in zip(route.servers, route.servers[1:], strict=False):
            if hop not in adjacent:
                raise DocumentError(f"{where}: there is no link from server {hop[0]} to {hop[1]}")
        if not route.weight > 0:
            raise DocumentError(f"{where}.weight: {route.weight} is not above 0")
        pair = (route.servers[0], route.servers[-1])
        weights[pair] = weights.get(pair, 0.0) + route.weight
    for pair, total in weights.items():
        if abs(total - 1) > 1e-9:
            raise DocumentError(
                f"network.routes: weights from server {pair[0]} to {pair[1]} sum to {total}, not 1"
            )
    for source in range(count):
        for target in range(count):
            pair = (source, target)
            if source != target and pair not in adjacent and pair not in weights:
                raise DocumentError(
                    f"network.routes: no link and no route from server {source} to {target}"
                )


def validate_network(cluster: Cluster, network: Network) -> Network:
    """Returns `network`, or raises DocumentError for the first of these rules that is broken.

    Ports exist and are used once; duplex links come in pairs; every server reaches every other;
    every ring visits each server of its group exactly once and shares sum to 1; routes use existing
    links, visit no server twice, cover every pair without a link, and weights sum to 1 per pair.
    """
    _validate_links(cluster, network.links)
    adjacent = {(link.source, link.target) for link in network.links}
    lost = _unreachable(cluster.servers, adjacent)
    if lost is not None:
        raise DocumentError(
            f"network.links: disconnected, server {lost} and server 0 cannot reach each other"
        )
    _validate_groups(cluster, network.groups)
    _validate_routes(network, adjacent, cluster.servers)
    return network


def validate_demand(cluster: Cluster, demand: Demand) -> Demand:
    """Returns `demand`, or raises DocumentError for the first entry that is not valid.

    Groups and pairs name servers of the cluster, none of them twice; sizes are at least 0 bytes.
    """
    for i, group in enumerate(demand.groups):
        _check_servers(f"demand.groups[{i}].servers", group.servers, cluster.servers)
        if not group.size_bytes >= 0:
            raise DocumentError(
                f"demand.groups[{i}].size_bytes: {group.size_bytes} is not at least 0"
            )
    for i, pair in enumerate(demand.pairs):
        where = f"demand.pairs[{i}]"
        _check_servers(where, (pair.source, pair.target), cluster.servers)
        if not pair.size_bytes >= 0:
            raise DocumentError(f"{where}.size_bytes: {pair.size_bytes} is not at least 0")
    return demand
