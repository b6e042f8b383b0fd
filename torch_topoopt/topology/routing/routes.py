"""Routes for every ordered pair without a link (paper section 4.2, step 4; Algorithm 1, 19-20)."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import Pair, Route, RouteTable, StrideRoute
from torch_topoopt.topology.routing.coin_change import (
    coin_change,
    least_loaded_sequences,
    shortest_last_coins,
    translate,
)
from torch_topoopt.topology.routing.hop_counts import hop_matrix
from torch_topoopt.topology.routing.next_hops import least_loaded_next_hops
from torch_topoopt.topology.routing.pair_bytes import bytes_by_offset, matrix_of, pairs_of
from torch_topoopt.topology.routing.port_rates import LoadWithBytes, path_weights
from torch_topoopt.topology.routing.shortest_paths import (
    least_loaded_paths,
    neighbours,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.plan import Demand, Group, Link


def circulant_offsets(servers: int, adjacent: set[Pair]) -> tuple[int, ...]:
    """The offsets c such that every server i has a link to i + c mod n; empty if links differ."""
    offsets = sorted({(target - source) % servers for source, target in adjacent})
    return tuple(offsets) if len(adjacent) == servers * len(offsets) else ()


def all_hop_distances(servers: int, links: Sequence[Link]) -> list[list[int]]:
    """Least hops between all ordered pairs, [source][target]; -1 where there is no path."""
    distances: list[list[int]] = hop_matrix(servers, links).tolist()
    return distances


def group_bytes(demand: Demand) -> dict[frozenset[int], int]:
    """AllReduce bytes of `demand` by set of servers; the same set twice is added up."""
    sizes: dict[frozenset[int], int] = {}
    for group in demand.groups:
        members = frozenset(group.servers)
        sizes[members] = sizes.get(members, 0) + group.size_bytes
    return sizes


def ring_pair_bytes(
    groups: Sequence[Group], sizes: Mapping[frozenset[int], int]
) -> dict[Pair, float]:
    """AllReduce bytes from each server to the next one on each ring.

    A ring of k servers that carries the share s of S bytes sends 2 (k - 1) / k * s * S bytes over
    every hop. `sizes[frozenset(group.servers)]` is S; a group that is not listed sends nothing.
    """
    sent: defaultdict[Pair, float] = defaultdict(float)
    for group in groups:
        size_bytes = sizes.get(frozenset(group.servers), 0)
        k = len(group.servers)
        for ring in group.rings:
            hop_bytes = 2 * (k - 1) / k * ring.share * size_bytes
            for hop in zip(ring.servers, (*ring.servers[1:], ring.servers[0]), strict=True):
                sent[hop] += hop_bytes
    return dict(sent)


def plan_routes(
    servers: int,
    links: Sequence[Link],
    ring_bytes: Mapping[Pair, float],
    pair_bytes: Mapping[Pair, float] | NDArray[np.int64],
    *,
    coins: Sequence[int] = (),
    paths: int = 4,
    rates: Mapping[Pair, float] | None = None,
) -> tuple[Route, ...] | RouteTable:
    """Routes for all ordered pairs without a link, all of the least number of hops, sorted by pair.

    - A pair in `pair_bytes` (MP demand; a mapping, or a matrix in which pairs without demand have
      0): up to `paths` shortest paths with equal weights.
    - A pair in `ring_bytes` (neighbours on a ring that has no link there): one route, by coin
      change over `coins` (the strides of the AllReduce sub-topology) unless other links offer a
      shorter one.
    - Any other pair (control and occasional traffic): one route.
    The result is a RouteTable: where the links of all servers are alike (a circulant network),
    routes are found per offset and moved to every source; elsewhere each choice takes the least
    loaded links so far, and pairs without demand follow next hops (`least_loaded_next_hops`).
    Without a pair that needs a route, it is ().
    With `rates` (`Cluster.pair_gbps`) links are not alike: a load is the time that a link is busy,
    the bytes to come included, and a pair's bytes follow the slowest link on each of its paths.

    Raises ValueError if `paths` is below 1 or some pair has no path.
    """
    if paths < 1:
        raise ValueError(f"paths: {paths} is not at least 1")
    adjacent = {(link.source, link.target) for link in links}
    if len(adjacent) == servers * (servers - 1):
        return ()
    offsets = circulant_offsets(servers, adjacent)
    if offsets and rates is None:
        matrix = matrix_of(pair_bytes, servers)
        return _circulant_routes(servers, offsets, matrix, paths)
    if not isinstance(pair_bytes, Mapping):
        pair_bytes = pairs_of(pair_bytes)
    router = _Router(servers, links, rates)
    chosen = router.routes(ring_bytes, pair_bytes, coins, paths)
    listed = tuple(
        Route(path, weight)
        for pair in sorted(chosen)
        for path, weight in zip(chosen[pair], path_weights(chosen[pair], rates), strict=True)
    )
    if len(chosen) + len(adjacent) == servers * (servers - 1):
        return listed
    return RouteTable(servers, (), least_loaded_next_hops(servers, router.load, rates), listed)


def _circulant_routes(
    servers: int,
    offsets: Sequence[int],
    matrix: NDArray[np.float64],
    paths: int,
) -> RouteTable:
    single = coin_change(servers, offsets)
    demand = bytes_by_offset(matrix)
    pairs = bytes_by_offset((matrix > 0).astype(np.float64))
    last_coins = shortest_last_coins(servers, offsets)
    load = dict.fromkeys(offsets, 0.0)
    spread: dict[int, list[tuple[int, ...]]] = {}
    for offset in sorted(np.flatnonzero(demand).tolist(), key=lambda o: (-demand[o], o)):
        if offset in load:
            load[offset] += demand[offset]
            continue
        spread[offset] = least_loaded_sequences(servers, last_coins, offset, paths, load)
        for sequence in spread[offset]:
            for coin in sequence:
                load[coin] += demand[offset] / len(spread[offset])
    rules = []
    listed = []
    for offset in range(1, servers):
        if offset in load:
            continue
        everywhere = pairs[offset] == servers
        sequences = spread[offset] if everywhere else [single[offset]]
        rules += [StrideRoute(sequence, 1 / len(sequences)) for sequence in sequences]
        if everywhere or not pairs[offset]:
            continue
        for source in range(servers):
            if matrix[source, (source + offset) % servers]:
                some = [StrideRoute(way, 1 / len(spread[offset])) for way in spread[offset]]
                listed += [route.from_server(source, servers) for route in some]
    listed.sort(key=lambda route: (route.servers[0], route.servers[-1]))
    return RouteTable(servers, tuple(rules), (), tuple(listed))


class _Router:
    """Load-aware shortest-path routes on any network."""

    def __init__(
        self, servers: int, links: Sequence[Link], rates: Mapping[Pair, float] | None
    ) -> None:
        self.servers = servers
        self.rates = rates
        # the divisor of bytes: rates, or where links are alike the number of parallel ones
        self.speed = rates or Counter((link.source, link.target) for link in links)
        self.load: dict[Pair, float] = dict.fromkeys(self.speed, 0.0)
        self.incoming = neighbours(servers, {(b, a) for a, b in self.speed})
        self.distances = all_hop_distances(servers, links)

    def routes(
        self,
        ring_bytes: Mapping[Pair, float],
        pair_bytes: Mapping[Pair, float],
        coins: Sequence[int],
        paths: int,
    ) -> dict[Pair, list[tuple[int, ...]]]:
        for demand in (ring_bytes, pair_bytes):
            for pair in sorted(demand.keys() & self.load.keys()):
                self._use([pair], demand[pair])
        chosen: dict[Pair, list[tuple[int, ...]]] = {}
        by_offset = coin_change(self.servers, coins) if coins else ()
        for pair in _largest_first(ring_bytes):
            if pair in self.load or pair in pair_bytes:
                continue
            source, target = pair
            if by_offset and len(by_offset[target - source]) == self.distances[source][target]:
                path = translate(by_offset[target - source], source, self.servers)
                chosen[pair] = [path]
                self._use(chosen[pair], ring_bytes[pair])
            else:
                chosen[pair] = self._take(pair, 1, ring_bytes[pair])
        for pair in _largest_first(pair_bytes):
            if pair not in self.load:
                size_bytes = pair_bytes[pair] + ring_bytes.get(pair, 0)
                chosen[pair] = self._take(pair, paths, size_bytes)
        return chosen

    def _take(self, pair: Pair, count: int, size_bytes: float) -> list[tuple[int, ...]]:
        distance = self.distances[pair[0]]
        load: Mapping[Pair, float] = self.load
        if self.rates is not None:
            load = LoadWithBytes(load, self.rates, size_bytes)
        found = least_loaded_paths(self.incoming, distance, pair[1], count, load)
        self._use(found, size_bytes)
        return found

    def _use(self, paths: Sequence[tuple[int, ...]], size_bytes: float) -> None:
        parts = [size_bytes / len(paths)] * len(paths)
        if self.rates is not None:
            parts = [size_bytes * weight for weight in path_weights(paths, self.rates)]
        for path, part in zip(paths, parts, strict=True):
            for hop in itertools.pairwise(path):
                self.load[hop] += part / self.speed[hop]


def _largest_first(demand: Mapping[Pair, float]) -> list[Pair]:
    return sorted(demand, key=lambda pair: (-demand[pair], pair))
