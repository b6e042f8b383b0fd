"""The rates of groups of accelerators whose boxes are cabled directly."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import BYTES_PER_GBPS
from torch_topoopt.plan.checks import unreachable
from torch_topoopt.plan.network import Network, Ring
from torch_topoopt.search.layouts.links import HOP_S, STEP_S, Boxes, RankGroup
from torch_topoopt.search.layouts.server_groups import server_sets
from torch_topoopt.search.lowering import lower_network
from torch_topoopt.topology.collectives.candidates import LinkGraph
from torch_topoopt.topology.routing.loads import link_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torch_topoopt import _core
    from torch_topoopt.plan import Cluster, Pair
    from torch_topoopt.search.accelerators import Accelerator

_PROBE_BYTES = 10**9


@dataclass(frozen=True)
class WiredBoxes(Boxes):
    """Boxes joined by the links of `rates`."""

    rates: GroupRates | None = None

    def gather_rate(self, group: RankGroup) -> float:
        assert self.rates is not None
        return self.rates.gather(group)

    def all_to_all_rate(self, group: RankGroup) -> float:
        assert self.rates is not None
        return self.rates.all_to_all(group)

    def send_rate(self, stride: int) -> float:
        assert self.rates is not None
        return self.rates.send(stride)


def boxes_of(
    cluster: Cluster,
    device: Accelerator,
    network: Network | None = None,
    *,
    schedules: bool = True,
) -> Boxes:
    """The boxes of `cluster`, on `network`; without one, on an ideal switch. `schedules` as
    `GroupRates`."""
    if network is None or cluster.servers == 1:
        return boxes_with(cluster, device, None)
    return boxes_with(cluster, device, NetworkRates(cluster, network, schedules=schedules))


def boxes_with(cluster: Cluster, device: Accelerator, rates: GroupRates | None) -> Boxes:
    """The boxes of `cluster` on links of these rates; without them, on an ideal switch."""
    inside = device.peer_bytes_per_s
    if cluster.inside_gbps is not None:
        inside = cluster.inside_gbps * BYTES_PER_GBPS
    step_s = STEP_S if cluster.inside_latency_s is None else cluster.inside_latency_s
    slowest = min(map(cluster.server_gbps, range(cluster.servers))) * BYTES_PER_GBPS
    hop_s = max(HOP_S, cluster.link_latency_s)
    own = cluster.accelerators_per_server, inside, slowest, step_s, hop_s
    return Boxes(*own) if rates is None else WiredBoxes(*own, rates=rates)


def around_rings(traffic: NDArray[np.float64], rings: Sequence[Ring], size_bytes: float) -> None:
    """Adds a gather of `size_bytes` around rings, by their shares, to the bytes of pairs."""
    total = sum(ring.share for ring in rings)
    for ring in rings:
        moved = size_bytes * ring.share / total * (len(ring.servers) - 1) / len(ring.servers)
        for hop in ring.hops:
            traffic[hop] += moved


class GroupRates(ABC):
    """Rates of groups of accelerators, in bytes per second of a box.

    All groups of a kind exchange at once. `pair_gbps` has the rates of links between two servers.
    Without `schedules`, groups gather over rings only. Results are cached.
    """

    def __init__(
        self, cluster: Cluster, pair_gbps: Mapping[Pair, float], *, schedules: bool = True
    ) -> None:
        self._schedules = schedules
        self._servers = cluster.servers
        self._box = cluster.accelerators_per_server
        self._ranks = range(cluster.servers * self._box)
        self._pair_gbps = pair_gbps
        self._found: dict[object, float] = {}
        self._of_graph: dict[object, float] = {}

    @abstractmethod
    def rings(self, servers: tuple[int, ...]) -> Sequence[Ring]:
        """The rings of these servers, which are ascending."""

    @abstractmethod
    def busiest_s(self, traffic: NDArray[np.float64]) -> float:
        """Seconds that the busiest link takes for bytes of all pairs of servers."""

    def gather(self, group: RankGroup) -> float:
        """Into a box, by the fastest schedule of each group over its own links, or by rings over
        routes."""
        return self._once(("gather", group), lambda: self._gather(group))

    def all_to_all(self, group: RankGroup) -> float:
        """Out of a box, over routes."""
        return self._once(("all_to_all", group), lambda: self._all_to_all(group))

    def send(self, stride: int) -> float:
        """Out of a box to the accelerators `stride` ranks further, over routes."""
        return self._once(("send", stride), lambda: self._send(stride))

    def _once(self, key: object, rate: Callable[[], float]) -> float:
        if key not in self._found:
            self._found[key] = rate()
        return self._found[key]

    def _gather(self, group: RankGroup) -> float:
        sets = server_sets(group, self._ranks, self._box)
        over_links = self._over_own_links(list(sets)) if self._schedules else 0.0
        return max(over_links, self._over_rings(sets))

    def _over_own_links(self, sets: Sequence[tuple[int, ...]]) -> float:
        """0 if groups share servers, or do not reach each other over their own links."""
        if len(set(itertools.chain(*sets))) < sum(map(len, sets)):
            return 0.0
        return min(map(self._of_servers, sets))

    def _of_servers(self, servers: tuple[int, ...]) -> float:
        at = {server: i for i, server in enumerate(servers)}
        pairs = {
            (at[a], at[b]): gbps for (a, b), gbps in self._pair_gbps.items() if a in at and b in at
        }
        if unreachable(range(len(servers)), set(pairs)) is not None:
            return 0.0
        rings = [
            Ring(tuple(at[server] for server in ring.servers), ring.share)
            for ring in self.rings(tuple(sorted(servers)))
        ]
        if any(hop not in pairs for ring in rings for hop in ring.hops):
            rings = []
        key = (len(servers), tuple(sorted(pairs.items())), tuple(rings))
        if key not in self._of_graph:
            self._of_graph[key] = _all_gather_rate(len(servers), pairs, rings)
        return self._of_graph[key]

    def _over_rings(self, sets: Mapping[tuple[int, ...], int]) -> float:
        traffic = np.zeros((self._servers, self._servers))
        for servers, count in sets.items():
            around_rings(traffic, self.rings(tuple(sorted(servers))), count * _PROBE_BYTES)
        seconds = self.busiest_s(traffic)
        return min(
            count * _PROBE_BYTES * (len(servers) - 1) / len(servers) / seconds
            for servers, count in sets.items()
        )

    def _all_to_all(self, group: RankGroup) -> float:
        traffic = np.zeros((self._servers,) * 2)
        for servers, count in server_sets(group, self._ranks, self._box).items():
            for pair in itertools.permutations(servers, 2):
                traffic[pair] += count * _PROBE_BYTES
        return self._rate_of(traffic)

    def _send(self, stride: int) -> float:
        traffic = np.zeros((self._servers,) * 2)
        for rank in self._ranks[: len(self._ranks) - stride]:
            traffic[rank // self._box, (rank + stride) // self._box] += _PROBE_BYTES
        np.fill_diagonal(traffic, 0)
        return min(self._rate_of(traffic), self._rate_of(traffic.T))

    def _rate_of(self, traffic: NDArray[np.float64]) -> float:
        most = float(traffic.sum(axis=1).max())
        return most / self.busiest_s(traffic) if most else 0.0


class NetworkRates(GroupRates):
    """Rates on the links, routes and rings of `network`."""

    def __init__(self, cluster: Cluster, network: Network, *, schedules: bool = True) -> None:
        super().__init__(cluster, cluster.pair_gbps(network.links), schedules=schedules)
        self._cluster, self._network = cluster, network
        rates = [cluster.gbps_of(link) * BYTES_PER_GBPS for link in network.links]
        self._link_rates = np.array(rates)
        self._rings = {tuple(sorted(group.servers)): group.rings for group in network.groups}

    def rings(self, servers: tuple[int, ...]) -> Sequence[Ring]:
        if servers not in self._rings:
            self._rings[servers] = tuple(self._core.rings(servers))
        return self._rings[servers]

    @cached_property
    def _core(self) -> _core.RoutedNetwork:
        return lower_network(self._cluster, self._network)

    def busiest_s(self, traffic: NDArray[np.float64]) -> float:
        loads = link_bytes(self._network, traffic)
        return float((loads / self._link_rates).max())


def _all_gather_rate(servers: int, gbps: Mapping[Pair, float], rings: Sequence[Ring]) -> float:
    """Bytes per second into a server, by the schedule with the least load, without latencies."""
    priced = LinkGraph(servers, gbps, rings).priced("all_gather", _PROBE_BYTES)
    least = min(candidate.busiest_link_bytes for candidate in priced.candidates)
    seconds = least / (min(gbps.values()) * BYTES_PER_GBPS)
    return _PROBE_BYTES * (servers - 1) / servers / seconds
