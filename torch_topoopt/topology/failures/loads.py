"""The loads of a demand on the remaining links after a failure, computed incrementally.

`LoadModel` records which traffic crosses which linked pair, so that the cost of a failure grows
only with its affected traffic.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt import _core
from torch_topoopt.plan import BYTES_PER_GBPS, Pair, Route
from torch_topoopt.plan.checks import unreachable
from torch_topoopt.topology.failures.degraded import DisconnectedError, Survivors, links_left
from torch_topoopt.topology.failures.pairs import PairTraffic
from torch_topoopt.topology.routing.routes import group_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torch_topoopt.plan import Cluster, Demand, Network

RingId = tuple[int, int]  # group, ring
_ROUNDS = 3  # of detours, each around the others
_EQUAL = 1e-6  # relative difference of times that count as equal


def ring_bytes_per_byte(members: int) -> float:
    """Bytes on each hop of the rings of a group, for every byte that it reduces."""
    return 2 * (members - 1) / members


class LoadModel:
    """Traffic of `demand` on `network`, by linked pair. `rate[edge]` is in bytes per second.

    `all_reduce_bytes[group]` is what one iteration reduces in `network.groups[group]`. Groups of
    the demand that the network has no rings for, and MP bytes of a pair, count as in
    `link_load_bytes`.
    """

    def __init__(self, cluster: Cluster, network: Network, demand: Demand) -> None:
        self.cluster, self.network = cluster, network
        self.rates = cluster.pair_gbps(network.links)
        self.edges = {pair: i for i, pair in enumerate(sorted(self.rates))}
        self.rate = np.array([self.rates[pair] * BYTES_PER_GBPS for pair in self.edges])
        self.planned: Mapping[Pair, tuple[Route, ...]] = network.routes_by_pair()
        sizes = group_bytes(demand)
        self.all_reduce_bytes = [sizes.get(frozenset(group.servers), 0) for group in network.groups]
        self.pairs = PairTraffic(demand, self.planned, self.edges)
        self._index_rings()
        self._group_loads: dict[int, NDArray[np.float64]] = {}
        self._reduced_loads: dict[int, NDArray[np.float64]] = {}
        # by members and changed links, turned: the load, and the turn that it is of
        self._packed: dict[object, tuple[NDArray[np.float64] | None, int]] = {}

    def _index_rings(self) -> None:
        """`ring_load[g][j]`: times that each byte on ring j crosses each edge."""
        self.ring_load: list[list[NDArray[np.float64]]] = []
        self.hops_over: defaultdict[Pair, set[tuple[int, int, Pair]]] = defaultdict(set)
        self.rings_with: defaultdict[Pair, set[RingId]] = defaultdict(set)  # hop -> rings
        for g, group in enumerate(self.network.groups):
            self.ring_load.append([])
            for j, ring in enumerate(group.rings):
                load = self.zeros()
                for hop in ring.hops:
                    self.rings_with[hop].add((g, j))
                    self.add(load, self.planned[hop], 1.0)
                    for route in self.planned[hop]:
                        for over in pairwise(route.servers):
                            self.hops_over[over].add((g, j, hop))
                self.ring_load[g].append(load)

    def zeros(self) -> NDArray[np.float64]:
        return np.zeros(len(self.edges))

    def add(self, load: NDArray[np.float64], routes: Iterable[Route], size: float) -> None:
        """Adds `size` bytes of a pair with these routes to `load`."""
        for route in routes:
            for hop in pairwise(route.servers):
                load[self.edges[hop]] += size * route.weight

    def group_load(self, g: int) -> NDArray[np.float64]:
        """Bytes on every edge for each byte that group `g` reduces, without any failure.

        The same array every time.
        """
        if g not in self._group_loads:
            group, load = self.network.groups[g], self.zeros()
            for ring, crossed in zip(group.rings, self.ring_load[g], strict=True):
                load += crossed * (ring.share * ring_bytes_per_byte(len(group.servers)))
            self._group_loads[g] = load
        return self._group_loads[g]

    def reduced_load(self, g: int) -> NDArray[np.float64]:
        """The same as the backend reduces: on the rings or, if faster, over a packing of trees.

        The same array every time.
        """
        if g not in self._reduced_loads:
            packed = self.packed_load(self.network.groups[g].servers, self.rates)
            self._reduced_loads[g] = _faster(self.group_load(g), packed, self.rate)
        return self._reduced_loads[g]

    def packed_load(
        self, servers: Iterable[int], rates: Mapping[Pair, float]
    ) -> NDArray[np.float64] | None:
        """The load of every edge, in bytes for each byte that `servers` reduce over a packing of
        trees into their links; None unless these join them. `rates` has Gb/s of the remaining
        links."""
        members = frozenset(servers)
        changed = {pair for pair, gbps in self.rates.items() if rates.get(pair) != gbps}
        turn = min(map(min, changed), default=0) // self._period * self._period
        key = (
            frozenset((server - turn) % self.cluster.servers for server in members),
            frozenset((self._turned(pair, -turn), rates.get(pair)) for pair in changed),
        )
        if key not in self._packed:
            self._packed[key] = self._pack(members, rates), turn
        load, of_turn = self._packed[key]
        if load is None or turn == of_turn:
            return load
        # the network is the same after a turn, so the packing is too
        turned = self.zeros()
        for pair, edge in self.edges.items():
            turned[self.edges[self._turned(pair, turn - of_turn)]] = load[edge]
        return turned

    def _pack(
        self, members: frozenset[int], rates: Mapping[Pair, float]
    ) -> NDArray[np.float64] | None:
        order = sorted(members)
        links = {pair: gbps for pair, gbps in rates.items() if members.issuperset(pair)}
        if len(order) < 2 or unreachable(order, links.keys()) is not None:
            return None
        rate = np.array([rates.get(pair, 0.0) for pair in self.edges])
        rate[rate == 0] = np.inf
        busy = np.zeros((2, len(self.edges)))
        for part, sends in zip(busy, _core.packed_all_reduce(order, links), strict=True):
            for pair, share in sends.items():
                part[self.edges[pair]] = share
        # the second half follows the first, so a link is kept for the busier of its two
        most = (busy / rate).max(axis=1)
        load: NDArray[np.float64] = (busy / most[:, np.newaxis]).max(axis=0) * most.sum()
        return load

    def _turned(self, pair: Pair, by: int) -> Pair:
        count = self.cluster.servers
        return (pair[0] + by) % count, (pair[1] + by) % count

    @cached_property
    def _period(self) -> int:
        """The least turn of all servers that leaves the links as they are."""
        count = self.cluster.servers
        return next(
            by
            for by in range(1, count + 1)
            if count % by == 0
            and all(self.rates.get(self._turned(p, by)) == gbps for p, gbps in self.rates.items())
        )


def _faster(
    on_rings: NDArray[np.float64], packed: NDArray[np.float64] | None, rate: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of equal ones the packing, which takes fewer steps."""
    if packed is None or (on_rings / rate).max() < (packed / rate).max() * (1 - _EQUAL):
        return on_rings
    return packed


@dataclass(frozen=True)
class Repair:
    """A group's repair: the rings that it drops, and routes for neighbours without a link.

    `load` is in bytes per byte that the group reduces.
    """

    dropped: tuple[int, ...]
    detours: dict[Pair, list[Route]]
    load: NDArray[np.float64]
    added_hops: float


class Loss:
    """One failure: the remaining network, the affected groups, and the load of all other traffic.

    `detours` are decided; `repair` finds more.
    """

    def __init__(
        self, model: LoadModel, lost: int, *, server: bool, detours: Iterable[Route] = ()
    ) -> None:
        self.model = model
        self.server = lost if server else None
        left = links_left(model.cluster, model.network, lost, server=server)
        self.left = model.cluster.pair_gbps(left)
        self.lost = set(model.edges) - set(self.left)
        self.weaker = {p for p, gbps in self.left.items() if gbps < model.rates[p]}
        self.rate = model.rate.copy()
        for pair in self.weaker:
            self.rate[model.edges[pair]] = self.left[pair] * BYTES_PER_GBPS
        self.lost_edges = sorted(model.edges[pair] for pair in self.lost)
        self.survivors = Survivors(model.cluster.servers, self.left.keys())
        self._near = [  # per server: its neighbours, and the edges to them
            [(near, model.edges[server, near]) for near in table]
            for server, table in enumerate(self.survivors.table)
        ]
        self.detours: dict[Pair, list[Route]] = {}
        for route in detours:
            self.detours.setdefault((route.servers[0], route.servers[-1]), []).append(route)
        self._touch()

    def _touch(self) -> None:
        """Finds the traffic that must be routed anew, and the load of all other."""
        model = self.model
        self._hops: defaultdict[RingId, set[Pair]] = defaultdict(set)
        for pair in self.lost:
            for g, j, hop in model.hops_over[pair]:
                self._hops[g, j].add(hop)
        for hop in self.detours:
            for ring in model.rings_with[hop]:
                self._hops[ring].add(hop)
        touched = {g for g, _ in self._hops}
        touched |= {g for pair in self.weaker for g, _, _ in model.hops_over[pair]}
        for g, group in enumerate(model.network.groups):
            if self.server in group.servers:
                touched.add(g)
        self.groups = sorted(touched)
        self.load = model.pairs.load_without(
            self.lost_edges, self.left, model.cluster.servers, self.server, self.detours
        )
        self.all_reduce_load = model.zeros()
        for g, size_bytes in enumerate(model.all_reduce_bytes):
            if g not in touched and size_bytes:
                self.all_reduce_load += model.group_load(g) * size_bytes

    def reduced_load(self, g: int, dropped: tuple[int, ...]) -> NDArray[np.float64]:
        """Bytes on every edge for each byte that group `g` reduces after the loss: on its rings
        without those `dropped` or, if faster, over a packing of trees into the remaining links."""
        servers = set(self.model.network.groups[g].servers)
        changed = any(servers.issuperset(pair) for pair in self.lost | self.weaker)
        if g not in self.groups and not changed:
            return self.model.reduced_load(g)
        is_touched = g in self.groups
        on_rings = self.repair(g, dropped).load if is_touched else self.model.group_load(g)
        packed = self.model.packed_load(servers - {self.server}, self.left)
        return _faster(on_rings, packed, self.rate)

    def _routes(self, pair: Pair) -> list[Route]:
        planned = self.model.planned[pair]
        return self.detours.get(pair) or self.survivors.routes(pair, planned, self.lost)

    def bound_s(self, g: int, others: NDArray[np.float64]) -> float:
        """A lower bound on the busiest link for any repair of group `g`, by its servers' bytes."""
        members = set(self.model.network.groups[g].servers) - {self.server}
        if len(members) < 2:
            return self.busiest_s(others)
        sent = self.model.all_reduce_bytes[g] * ring_bytes_per_byte(len(members))
        count = self.model.cluster.servers
        is_left = np.ones(len(self.rate))
        is_left[self.lost_edges] = 0.0
        sources = [source for source, _ in self.model.edges]
        out_bytes = np.bincount(sources, others * is_left, count)
        out_rate = np.bincount(sources, self.rate * is_left, count)
        own = ((out_bytes[s] + sent) / out_rate[s] for s in members)
        return max(self.busiest_s(others), float(max(own)))

    def busiest_s(self, load: NDArray[np.float64]) -> float:
        """Seconds that the busiest linked pair takes for `load`; 0 where nothing is linked."""
        return float((load / self.rate).max(initial=0.0))

    def rings_hit(self, g: int) -> set[int]:
        """Rings of group `g` with neighbours whose link is lost, or one of their links."""
        gone = self.lost | self.weaker
        rings = self.model.network.groups[g].rings
        return {j for j, ring in enumerate(rings) if not gone.isdisjoint(ring.hops)}

    def repair(
        self, g: int, dropped: tuple[int, ...], others: NDArray[np.float64] | None = None
    ) -> Repair:
        """Group `g` without the rings `dropped`.

        Hops use the routes of `degraded_network`. With `others`, the load of all other traffic, new
        neighbours and those that lost their link get detours that minimise the busiest link.
        """
        model = self.model
        group = model.network.groups[g]
        members = len(group.servers) - (self.server in group.servers)
        load, detours, added_hops = model.zeros(), dict[Pair, list[Route]](), 0.0
        if members < 2:
            return Repair((), detours, load, added_hops)
        kept = [j for j in range(len(group.rings)) if j not in dropped]
        total = sum(group.rings[j].share for j in kept)
        part = {j: group.rings[j].share / total * ring_bytes_per_byte(members) for j in kept}
        for j in kept:
            load += model.ring_load[g][j] * part[j]
            for hop in sorted(self._hops[g, j]):
                model.add(load, model.planned[hop], -part[j])
        load[self.lost_edges] = 0.0
        searched: defaultdict[Pair, float] = defaultdict(float)
        for j in kept:
            for hop, is_new in self._hops_anew(g, j):
                if others is not None and is_new and not (hop in self.left or hop in self.detours):
                    searched[hop] += part[j]
                    continue
                routes = self._routes(hop)
                model.add(load, routes, part[j])
                added_hops += sum((len(r.servers) - 1) * r.weight for r in routes)
        if searched and others is not None:
            detours = self._find_detours(g, searched, load, others)
            added_hops += sum(
                (len(r.servers) - 1) * r.weight for found in detours.values() for r in found
            )
        return Repair(dropped, detours, load, added_hops)

    def _find_detours(
        self,
        g: int,
        hops: Mapping[Pair, float],
        load: NDArray[np.float64],
        others: NDArray[np.float64],
    ) -> dict[Pair, list[Route]]:
        """Detours of `hops`, each with its bytes per byte of group `g`; adds them to `load`.

        It places one hop after the other, and improves the worst ones against the others' detours.
        """
        # a group without bytes gets detours as if it were alone
        scale, floor_s = 1, 0.0
        if size_bytes := self.model.all_reduce_bytes[g]:
            scale, floor_s = size_bytes, self.bound_s(g, others)
        base = others if size_bytes else self.model.zeros()
        ends = {server for hop in hops for server in hop}
        detours: dict[Pair, list[Route]] = {}
        best: tuple[float, dict[Pair, list[Route]], NDArray[np.float64]] | None = None
        for _ in range(_ROUNDS):
            for hop, part in hops.items():
                if hop in detours:
                    self.model.add(load, detours[hop], -part)
                detours[hop] = self._spread(hop, base + load * scale, part * scale, floor_s, ends)
                self.model.add(load, detours[hop], part)
            busiest_s = self.busiest_s(base + load * scale)
            if best is None or busiest_s < best[0] * (1 - 1e-9):
                best = busiest_s, dict(detours), load.copy()
            if busiest_s <= floor_s * (1 + 1e-8):
                break
        assert best is not None
        load[:] = best[2]
        return best[1]

    def _hops_anew(self, g: int, j: int) -> list[tuple[Pair, bool]]:
        """The hops of a ring that need new routes, and whether they had a link, or were none."""
        order = self.model.network.groups[g].rings[j].servers
        hops = [
            (hop, hop in self.lost) for hop in sorted(self._hops[g, j]) if self.server not in hop
        ]
        if self.server in order:
            at = order.index(self.server)
            hops.append(((order[at - 1], order[(at + 1) % len(order)]), True))
        return hops

    def _spread(
        self,
        hop: Pair,
        busy: NDArray[np.float64],
        size: float,
        floor_s: float,
        avoid: Collection[int],
    ) -> list[Route]:
        """Detours for the `size` bytes of a hop, as many at most as its source has links.

        Adds them to `busy`, the bytes on every edge. See `_spare_way`.
        """
        count = len(self.survivors.table[hop[0]])
        times: dict[tuple[int, ...], int] = {}
        for _ in range(count):
            way = self._spare_way(hop, busy, size / count, floor_s, avoid)
            times[way] = times.get(way, 0) + 1
            self.model.add(busy, [Route(way, 1.0)], size / count)
        return [Route(way, times[way] / count) for way in sorted(times)]

    def _spare_way(
        self,
        pair: Pair,
        busy: NDArray[np.float64],
        size: float,
        floor_s: float,
        avoid: Collection[int],
    ) -> tuple[int, ...]:
        """The way for `size` bytes with the least busy maximum, then with the fewest hops.

        Links below `floor_s`, or below the current maximum, count as equal. Among equal ways, one
        that passes no server of `avoid` comes first.
        """
        floor_s = max(floor_s, self.busiest_s(busy)) * (1 + 1e-9)
        seconds = ((busy + size) / self.rate).tolist()  # by edge
        for shunned in (avoid, ()):
            if way := self._short_way(pair, seconds, floor_s, shunned):
                return way
        done: set[int] = set()
        queue: list[tuple[float, int, tuple[int, ...]]] = [(floor_s, 0, (pair[0],))]
        while queue:
            most, hops, way = heapq.heappop(queue)
            if way[-1] == pair[1]:
                return way
            if way[-1] not in done:
                done.add(way[-1])
                for near, edge in self._near[way[-1]]:
                    if near not in done:
                        over = max(most, seconds[edge])
                        heapq.heappush(queue, (over, hops + 1, (*way, near)))
        raise DisconnectedError(f"no way is left from server {pair[0]} to {pair[1]}")

    def _short_way(
        self, pair: Pair, seconds: Sequence[float], most_s: float, avoid: Collection[int]
    ) -> tuple[int, ...] | None:
        """A shortest way over links busy for at most `most_s`, around the servers of `avoid`."""
        source, target = pair
        before = {source: source}
        frontier = [source]
        while frontier and target not in before:
            reached = []
            for server in frontier:
                for near, edge in self._near[server]:
                    if near in before or (near in avoid and near != target):
                        continue
                    if seconds[edge] <= most_s:
                        before[near] = server
                        reached.append(near)
            frontier = reached
        if target not in before:
            return None
        way = [target]
        while way[-1] != source:
            way.append(before[way[-1]])
        return tuple(reversed(way))
