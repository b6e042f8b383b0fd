"""The rates of groups of accelerators whose boxes are cabled directly."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import BYTES_PER_GBPS, Demand, Group, GroupDemand
from torch_topoopt.plan.checks import unreachable
from torch_topoopt.plan.network import Network, Ring
from torch_topoopt.search.layouts.links import HOP_S, STEP_S, Boxes, RankGroup
from torch_topoopt.search.layouts.server_groups import server_sets
from torch_topoopt.search.lowering import lower_network
from torch_topoopt.topology.collectives.candidates import LinkGraph
from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

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

    rates: NetworkRates | None = None

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
    `NetworkRates`."""
    inside = device.peer_bytes_per_s
    if cluster.inside_gbps is not None:
        inside = cluster.inside_gbps * BYTES_PER_GBPS
    step_s = STEP_S if cluster.inside_latency_s is None else cluster.inside_latency_s
    slowest = min(map(cluster.server_gbps, range(cluster.servers))) * BYTES_PER_GBPS
    hop_s = max(HOP_S, cluster.link_latency_s)
    per_server = cluster.accelerators_per_server
    if network is None or cluster.servers == 1:
        return Boxes(per_server, inside, slowest, step_s, hop_s)
    rates = NetworkRates(cluster, network, schedules=schedules)
    return WiredBoxes(per_server, inside, slowest, step_s, hop_s, rates)


class NetworkRates:
    """Rates of groups of accelerators on the links of `network`, in bytes per second of a box.

    All groups of a kind exchange at once. Without `schedules`, they gather over the rings of
    `network` only. Results are cached.
    """

    def __init__(self, cluster: Cluster, network: Network, *, schedules: bool = True) -> None:
        self._schedules = schedules
        self._cluster = cluster
        self._network = network
        self._box = cluster.accelerators_per_server
        self._ranks = range(cluster.servers * self._box)
        rates = [cluster.gbps_of(link) * BYTES_PER_GBPS for link in network.links]
        self._link_rates = np.array(rates)
        self._pair_gbps = cluster.pair_gbps(network.links)
        self._rings = {tuple(sorted(group.servers)): group for group in network.groups}
        self._found: dict[object, float] = {}
        self._of_graph: dict[object, float] = {}

    def gather(self, group: RankGroup) -> float:
        """Into a box, by the fastest schedule of each group over its own links, or by rings over
        routes."""
        return self._once(("gather", group), lambda: self._gather(group))

    def all_to_all(self, group: RankGroup) -> float:
        """Out of a box, over the routes of the network."""
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
        group = self._rings.get(tuple(sorted(servers)))
        rings = [
            Ring(tuple(at[server] for server in ring.servers), ring.share)
            for ring in (group.rings if group else ())
        ]
        if any(hop not in pairs for ring in rings for hop in ring.hops):
            rings = []
        key = (len(servers), tuple(sorted(pairs.items())), tuple(rings))
        if key not in self._of_graph:
            self._of_graph[key] = _all_gather_rate(len(servers), pairs, rings)
        return self._of_graph[key]

    def _over_rings(self, sets: Mapping[tuple[int, ...], int]) -> float:
        keys = {servers: tuple(sorted(servers)) for servers in sets}
        groups = tuple(self._ring_group(key) for key in dict.fromkeys(keys.values()))
        network = Network(self._network.links, groups, self._network.routes)
        # An AllGather of b bytes is half an AllReduce of them.
        demands = tuple(
            GroupDemand(keys[servers], count * _PROBE_BYTES // 2) for servers, count in sets.items()
        )
        traffic = traffic_matrix(network, Demand(demands, ()), self._cluster.servers)
        seconds = self._busiest_s(traffic)
        return min(
            count * _PROBE_BYTES * (len(servers) - 1) / len(servers) / seconds
            for servers, count in sets.items()
        )

    def _ring_group(self, servers: tuple[int, ...]) -> Group:
        group = self._rings.get(servers)
        if group is None:
            group = Group(servers, tuple(self._core.rings(servers)))
        return group

    @cached_property
    def _core(self) -> _core.RoutedNetwork:
        return lower_network(self._cluster, self._network)

    def _all_to_all(self, group: RankGroup) -> float:
        traffic = np.zeros((self._cluster.servers,) * 2)
        for servers, count in server_sets(group, self._ranks, self._box).items():
            for pair in itertools.permutations(servers, 2):
                traffic[pair] += count * _PROBE_BYTES
        return self._rate_of(traffic)

    def _send(self, stride: int) -> float:
        traffic = np.zeros((self._cluster.servers,) * 2)
        for rank in self._ranks[: len(self._ranks) - stride]:
            traffic[rank // self._box, (rank + stride) // self._box] += _PROBE_BYTES
        np.fill_diagonal(traffic, 0)
        return min(self._rate_of(traffic), self._rate_of(traffic.T))

    def _rate_of(self, traffic: NDArray[np.float64]) -> float:
        most = float(traffic.sum(axis=1).max())
        return most / self._busiest_s(traffic) if most else 0.0

    def _busiest_s(self, traffic: NDArray[np.float64]) -> float:
        loads = link_bytes(self._network, traffic)
        return float((loads / self._link_rates).max())


def _all_gather_rate(servers: int, gbps: Mapping[Pair, float], rings: Sequence[Ring]) -> float:
    """Bytes per second into a server, by the schedule with the least load, without latencies."""
    priced = LinkGraph(servers, gbps, rings).priced("all_gather", _PROBE_BYTES)
    least = min(candidate.busiest_link_bytes for candidate in priced.candidates)
    seconds = least / (min(gbps.values()) * BYTES_PER_GBPS)
    return _PROBE_BYTES * (servers - 1) / servers / seconds
