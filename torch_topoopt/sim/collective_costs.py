"""The bytes and the latency of a collective between servers, by the schedule of the backend."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from torch_topoopt._core import GraphGroup
from torch_topoopt.plan import BYTES_PER_GBPS, CostModel
from torch_topoopt.plan.network import Ring, hops_around

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch_topoopt.plan import Cluster, Network, Pair

    Priced = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]

# as measure_cost measures it between idle namespaces; a plan's own model comes before it
EMULATED_COST = CostModel(alpha_s=25e-6, per_hop_latency_s=15e-6, gamma_s_per_byte=0.0)

# Passes over the shards: True where it runs backwards, from all servers to each shard's own.
_PASSES: Mapping[Priced, tuple[bool, ...]] = {
    "all_reduce": (True, False),
    "all_gather": (False,),
    "reduce_scatter": (True,),
}
_ON_LINKS = ("ring", "multi_ring", "breadth_first", "packing")  # their messages are known


@dataclass(frozen=True)
class CollectiveCost:
    """Bytes of messages between two servers, and seconds besides their time on links."""

    messages: Mapping[Pair, float]
    latency_s: float


class CollectiveCosts(Protocol):
    """Costs of collectives among servers (ascending, at least two)."""

    def collective(
        self, collective: Priced, servers: tuple[int, ...], size_bytes: int
    ) -> CollectiveCost: ...

    def message(self, source: int, target: int, size_bytes: float) -> CollectiveCost: ...


class IdealSwitchCosts:
    """On a switch that never blocks, with all ports of a server to it; without messages."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collective(
        self, collective: Priced, servers: tuple[int, ...], size_bytes: int
    ) -> CollectiveCost:
        passes = len(_PASSES.get(collective, (False,)))
        received_bytes = (len(servers) - 1) / len(servers) * size_bytes
        return CollectiveCost({}, passes * self._seconds(servers, received_bytes))

    def message(self, source: int, target: int, size_bytes: float) -> CollectiveCost:
        return CollectiveCost({}, self._seconds((source, target), size_bytes))

    def _seconds(self, servers: Sequence[int], size_bytes: float) -> float:
        slowest = min(map(self._cluster.server_gbps, servers)) * BYTES_PER_GBPS
        return size_bytes / slowest + self._cluster.link_latency_s


class NetworkCosts:
    """On the links and routes of a network.

    `cost` is the model of messages. `algorithm` is taken where it is a candidate; "auto" takes the
    fastest, and "on-links" the fastest whose messages are known. Algorithms other than rings and
    schedules over links load all links of the group as much as their busiest one.
    """

    def __init__(
        self, cluster: Cluster, network: Network, cost: CostModel, algorithm: str = "auto"
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._cost = cost
        self._algorithm = algorithm
        self._groups: dict[tuple[int, ...], GraphGroup | None] = {}
        self._rates: dict[Pair, float] = defaultdict(float)  # bytes per second
        for link in network.links:
            self._rates[link.source, link.target] += cluster.gbps_of(link) * BYTES_PER_GBPS
        self._rings = {tuple(sorted(group.servers)): group.rings for group in network.groups}

    def collective(
        self, collective: Priced, servers: tuple[int, ...], size_bytes: int
    ) -> CollectiveCost:
        if servers not in self._groups:
            self._groups[servers] = self._group(servers)
        group = self._groups[servers]
        if group is None:
            return self._around_routed_rings(collective, servers, size_bytes)
        found = group.candidates(collective, size_bytes)
        candidates = {candidate.algorithm: candidate for candidate in found.list}
        if self._algorithm == "on-links":
            known = (candidates[name] for name in _ON_LINKS if name in candidates)
            chosen = min(known, key=lambda candidate: candidate.seconds)
        else:
            chosen = candidates.get(self._algorithm, candidates[found.chosen])
        rates = dict(self._links_among(servers))
        passes = _PASSES.get(collective, ())
        messages = _messages(group, chosen.algorithm, passes, servers, size_bytes)
        if not any(messages.values()):  # not known
            messages = dict.fromkeys(rates, chosen.busiest_link_bytes)
        on_links_s = chosen.busiest_link_bytes / min(rates.values())
        return CollectiveCost(messages, max(0.0, chosen.seconds - on_links_s))

    def message(self, source: int, target: int, size_bytes: float) -> CollectiveCost:
        return CollectiveCost({(source, target): size_bytes}, self._cost.alpha_s)

    def _links_among(self, servers: tuple[int, ...]) -> Iterator[tuple[Pair, float]]:
        members = set(servers)
        return ((pair, rate) for pair, rate in self._rates.items() if members.issuperset(pair))

    def _group(self, servers: tuple[int, ...]) -> GraphGroup | None:
        """None if links of the servers themselves do not join them."""
        place = {server: i for i, server in enumerate(servers)}
        links = [
            (place[source], place[target], rate)
            for (source, target), rate in self._links_among(servers)
        ]
        rings = [
            Ring(tuple(place[server] for server in ring.servers), ring.share)
            for ring in self._rings.get(servers, ())
        ]
        model = self._cost
        try:
            return GraphGroup(len(servers), links, rings, model.alpha_s, model.per_hop_latency_s)
        except ValueError:
            return None

    def _around_routed_rings(
        self, collective: Priced, servers: tuple[int, ...], size_bytes: int
    ) -> CollectiveCost:
        rings = self._rings.get(servers) or (Ring(servers, 1.0),)
        passes = len(_PASSES.get(collective, (False,)))
        messages = _around(rings, passes * size_bytes / len(servers))
        step_s = self._cost.alpha_s + self._cost.per_hop_latency_s
        return CollectiveCost(messages, passes * (len(servers) - 1) * step_s)


def _messages(
    group: GraphGroup,
    algorithm: str,
    passes: Sequence[bool],
    servers: tuple[int, ...],
    size_bytes: int,
) -> dict[Pair, float]:
    """Bytes by pair of servers; none for an algorithm whose messages are not known."""
    shard_bytes = size_bytes / len(servers)
    if algorithm in ("ring", "multi_ring"):
        rings = group.rings[:1] if algorithm == "ring" else group.rings
        around = _around(rings, len(passes) * shard_bytes)
        return {(servers[a], servers[b]): sent for (a, b), sent in around.items()}
    sent_bytes: dict[Pair, float] = defaultdict(float)
    if algorithm in ("breadth_first", "packing"):
        for backward in passes:
            received, units, _ = group.plan(algorithm, backward, None)
            for receiver, pieces in enumerate(received):
                for sender, _, first, end, _ in pieces:
                    ends = (receiver, sender) if backward else (sender, receiver)
                    pair = servers[ends[0]], servers[ends[1]]
                    sent_bytes[pair] += (end - first) / units * shard_bytes
    return sent_bytes


def _around(rings: Sequence[Ring], shard_bytes: float) -> dict[Pair, float]:
    """Every ring carries its share of the shards once around, but for the last hop of each."""
    total = sum(ring.share for ring in rings)
    sent_bytes: dict[Pair, float] = defaultdict(float)
    for ring in rings:
        for hop in hops_around(ring.servers):
            sent_bytes[hop] += ring.share / total * shard_bytes * (len(ring.servers) - 1)
    return sent_bytes
