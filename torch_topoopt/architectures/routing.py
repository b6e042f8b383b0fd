"""The loads of pairs: from a Topology to (link, load) per pair of servers, reduced by symmetry.

Servers with a single link are attached to a switch and omitted from the path search. Some links are
loaded by every flow in the same proportion to their rates, such as the uplinks of one level of a
fat-tree under spread routing. One of them represents all: this is exact, and makes a fat-tree a
tree.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt import _core
from torch_topoopt.plan import BYTES_PER_GBPS, CostModel, Group, Pair
from torch_topoopt.plan.network import hops_around
from torch_topoopt.topology.routing.shortest_paths import hop_distances

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.plan import Ring

    # Rows of servers, by the servers of a group, ascending.
    Grids = Mapping[tuple[int, ...], tuple[tuple[int, ...], ...]]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PairLoads:
    """Row i: every byte from `source[i]` to `target[i]` puts `load[u]` bytes on edge `edge[u]`, for
    u in begin[i]..begin[i + 1]; its path latency is at most `latency_s[i]`."""

    source: Ints
    target: Ints
    latency_s: Floats
    begin: Ints
    edge: Ints
    load: Floats


class Routes:
    """The routing of a Topology. Parallel links are one edge with their summed rate."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        index: dict[Pair, int] = {}
        rates: list[float] = []
        latency: list[float] = []
        self._edge_of_link: list[int] = []
        for link in topology.links:
            edge = index.setdefault((link.source, link.target), len(index))
            if edge == len(rates):
                rates.append(0.0)
                latency.append(0.0)
            rates[edge] += link.gbps * BYTES_PER_GBPS
            latency[edge] = max(latency[edge], link.latency_s)
            self._edge_of_link.append(edge)
        self.index = index
        self.bytes_per_s: Floats = np.array(rates)
        self.latency_s: Floats = np.array(latency)
        self._from = np.array([a for a, _ in index], dtype=np.int64)
        self._to = np.array([b for _, b in index], dtype=np.int64)
        self.router = self._routers()

    def _routers(self) -> list[int]:
        """The node that each server's paths start and end at: itself, or its only switch."""
        near: list[set[int]] = [set() for _ in range(self.topology.servers)]
        for a, b in self.index:
            if a < self.topology.servers:
                near[a].add(b)
            if b < self.topology.servers:
                near[b].add(a)
        routers = []
        for server, others in enumerate(near):
            switch = min(others, default=-1)
            single = len(others) == 1 and switch >= self.topology.servers
            routers.append(switch if single else server)
        return routers

    def with_rings(self, topology: Topology) -> Routes:
        """The same routing of a `topology` that differs in its rings alone."""
        same = copy.copy(self)
        same.__dict__.pop("rings", None)
        same.topology = topology
        return same

    @cached_property
    def rings(self) -> _core.RoutedNetwork:
        """The rings of every group, without paths."""
        return lower_topology(self, ()).network

    def loads(self, pairs: Iterable[Pair]) -> PairLoads:
        """The loads of the given pairs of servers, in ascending order of pairs.

        Raises ValueError for a pair that has no path.
        """
        wanted = sorted(set(pairs))
        source, target = _columns(wanted)
        router = np.array(self.router, dtype=np.int64)
        first, last = router[source], router[target]
        inner = self._router_loads(set(zip(first.tolist(), last.tolist(), strict=True)))
        nodes = self.topology.nodes
        # per pair: the link to its first router, those between routers, the last link
        up, down = np.flatnonzero(first != source), np.flatnonzero(last != target)
        between = np.flatnonzero(first != last)
        row = np.searchsorted(
            inner.source * nodes + inner.target, first[between] * nodes + last[between]
        )
        counts = np.zeros(len(wanted), dtype=np.int64)
        counts[between] = np.diff(inner.begin)[row]
        ups = np.zeros(len(wanted), dtype=np.int64)
        ups[up] = 1
        lengths = ups + counts
        lengths[down] += 1
        begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        edge = np.zeros(int(begin[-1]), dtype=np.int64)
        load = np.ones(int(begin[-1]))
        latency_s = np.zeros(len(wanted))
        edge[begin[up]] = [self.index[pair] for pair in _zipped(source[up], first[up])]
        latency_s[up] += self.latency_s[edge[begin[up]]]
        at = _spans((begin[:-1] + ups)[between], counts[between])
        of = _spans(inner.begin[row], counts[between])
        edge[at], load[at] = inner.edge[of], inner.load[of]
        latency_s[between] += inner.latency_s[row]
        ends = begin[1:][down] - 1
        edge[ends] = [self.index[pair] for pair in _zipped(last[down], target[down])]
        latency_s[down] += self.latency_s[edge[ends]]
        return PairLoads(source, target, latency_s, begin, edge, load)

    def _router_loads(self, pairs: set[Pair]) -> PairLoads:
        """The same between attachment switches."""
        listed: dict[Pair, list[tuple[tuple[int, ...], float]]] = {}
        for path in self.topology.paths:
            ends = (path.nodes[0], path.nodes[-1])
            if ends in pairs:
                listed.setdefault(ends, []).append((path.nodes, path.weight))
        rows: dict[Pair, tuple[Ints, Floats, float]] = {}
        spread: list[Pair] = []
        for pair in pairs:
            if pair in listed:
                rows[pair] = self._listed(listed[pair])
            elif self.topology.paths and pair in self.index:
                rows[pair] = self._listed([(pair, 1.0)])
            elif pair[0] != pair[1]:
                spread.append(pair)
        spread.sort(key=lambda pair: pair[::-1])
        source, target = _columns([*spread, *rows])
        begin, edge, load, latency_s = self._shortest_paths.of_each_pair(
            source[: len(spread)], target[: len(spread)], self.latency_s
        )
        lengths = np.array([*np.diff(begin), *(len(of) for of, _, _ in rows.values())], np.int64)
        edges = np.concatenate([edge, *(of for of, _, _ in rows.values())])
        parts = np.concatenate([load, *(part for _, part, _ in rows.values())])
        latest = np.array([*latency_s, *(of for _, _, of in rows.values())])
        order = np.lexsort((target, source))
        at = _spans((np.cumsum(lengths) - lengths)[order], lengths[order])
        return PairLoads(
            source=source[order],
            target=target[order],
            latency_s=latest[order],
            begin=np.concatenate([[0], np.cumsum(lengths[order])]).astype(np.int64),
            edge=edges[at],
            load=parts[at],
        )

    @cached_property
    def _shortest_paths(self) -> _core.ShortestPathLoads:
        return _core.ShortestPathLoads(
            self.topology.nodes,
            self._from.astype(np.int32),
            self._to.astype(np.int32),
            self.bytes_per_s,
        )

    def _listed(self, paths: Sequence[tuple[tuple[int, ...], float]]) -> tuple[Ints, Floats, float]:
        load: dict[int, float] = {}
        latency_s = 0.0
        for nodes, weight in paths:
            hops = [self.index[hop] for hop in pairwise(nodes)]
            latency_s = max(latency_s, float(sum(self.latency_s[edge] for edge in hops)))
            for edge in hops:
                load[edge] = load.get(edge, 0.0) + weight
        edges = sorted(load)
        return np.array(edges, dtype=np.int64), np.array([load[e] for e in edges]), latency_s

    def distances_to(self, target: int) -> Ints:
        """Least hops from every node to `target`; -1 where there is no path."""
        if not hasattr(self, "_into"):
            self._into: list[list[int]] = [[] for _ in range(self.topology.nodes)]
            for a, b in self.index:
                self._into[b].append(a)
        return np.array(hop_distances(self._into, target), dtype=np.int64)

    def link_bytes(self, edge_bytes: Sequence[float]) -> tuple[int, ...]:
        """Bytes of every link of the topology; parallel ones share in proportion to their rates."""
        return tuple(
            round(edge_bytes[edge] * link.gbps * BYTES_PER_GBPS / self.bytes_per_s[edge])
            for edge, link in zip(self._edge_of_link, self.topology.links, strict=True)
        )


def _columns(pairs: Sequence[Pair]) -> tuple[Ints, Ints]:
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return first, second


def _zipped(first: Ints, second: Ints) -> Iterable[Pair]:
    return zip(first.tolist(), second.tolist(), strict=True)


def _spans(first: Ints, lengths: Ints) -> Ints:
    """first[0], first[0] + 1, ..., `lengths[0]` of them, then those from first[1] on, ..."""
    before = np.cumsum(lengths) - lengths
    found: Ints = np.arange(int(lengths.sum()), dtype=np.int64)
    found += np.repeat(first - before, lengths)
    return found


@dataclass(frozen=True)
class Folded:
    """A network for the simulator, and the mapping back: edge e carries `ratio[e]` times the bytes
    of the simulated link `representative[e]` (-1: no pair uses it)."""

    network: _core.RoutedNetwork
    representative: tuple[int, ...]
    ratio: tuple[float, ...]

    def edge_bytes(self, simulated: Sequence[float]) -> list[float]:
        """Bytes per edge from bytes per simulated link."""
        return [
            simulated[link] * ratio if link >= 0 else 0.0
            for link, ratio in zip(self.representative, self.ratio, strict=True)
        ]


class FoldedPairs:
    """The loads of some pairs of servers, equal links folded into one: for networks with the same
    links and routes, and other rings.

    With `schedules`, groups also choose as `lower_network` says; the pairs must include those of
    `ring_hops` then. No links of a direct network are folded."""

    def __init__(self, routes: Routes, pairs: Iterable[Pair], *, schedules: bool = False) -> None:
        """Raises ValueError for a pair that has no path."""
        whole = schedules and routes.topology.is_direct
        loads = routes.loads(pairs)
        relative = _rounded(loads.load / routes.bytes_per_s[loads.edge])
        rows = np.repeat(np.arange(len(loads.source)), np.diff(loads.begin))
        order = np.argsort(loads.edge, kind="stable")
        used, first = np.unique(loads.edge[order], return_index=True)
        bounds = [*first.tolist(), len(order)]
        known: dict[tuple[bytes, bytes], int] = {}
        representative = [-1] * len(routes.bytes_per_s)
        ratio = [0.0] * len(representative)
        kept: list[int] = []
        for i, edge in enumerate(used.tolist()):
            at = order[bounds[i] : bounds[i + 1]]
            link = known.setdefault((rows[at].tobytes(), relative[at].tobytes()), len(kept))
            if link == len(kept):
                kept.append(edge)
            representative[edge] = link
            ratio[edge] = float(routes.bytes_per_s[edge] / routes.bytes_per_s[kept[link]])
        if whole:
            kept = representative = list(range(len(representative)))
            ratio = [1.0] * len(kept)
        is_kept = np.zeros(len(representative), dtype=bool)
        is_kept[kept] = True
        keep = is_kept[loads.edge]
        count = np.bincount(rows[keep], minlength=len(loads.source))
        number = np.array(representative, dtype=np.int64)
        self._representative, self._ratio = tuple(representative), tuple(ratio)
        self._schedules: tuple[list[Pair], CostModel] | None = None
        if schedules:
            switches = (routes.topology.nodes, routes.topology.nodes)
            ends = list(routes.index) if whole else [switches] * len(kept)
            latency_s = float(max(routes.latency_s, default=0.0))
            self._schedules = ends, CostModel.of_latency(latency_s)
        self._arguments: dict[str, Any] = {
            "bytes_per_s": routes.bytes_per_s[kept].tolist(),
            "source": loads.source,
            "target": loads.target,
            "latency_s": loads.latency_s,
            "begin": np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
            "link": number[loads.edge[keep]],
            "load": loads.load[keep],
        }

    def network(self, topology: Topology, grids: Grids | None = None) -> Folded:
        """With the rings of `topology`, whose links and routes are those of the pairs, and with
        `grids` for its groups (default: `grids_of` it)."""
        rows = grids_of(topology) if grids is None else grids
        groups = [
            Group(servers, rings, rows.get(servers, ())) for servers, rings in _groups(topology)
        ]
        network = _core.network_of_paths(servers=topology.servers, groups=groups, **self._arguments)
        if self._schedules is not None:
            network.add_schedules(*self._schedules)
        return Folded(network, self._representative, self._ratio)


def _groups(topology: Topology) -> list[tuple[tuple[int, ...], tuple[Ring, ...]]]:
    every = (topology.rings, *topology.group_rings)
    return [(tuple(sorted(rings[0].servers)), tuple(rings)) for rings in every if rings]


def grids_of(topology: Topology) -> Grids:
    """The grid rows of each group with rings of its own that is a rectangle."""
    if topology.grid is None:
        return {}
    found = {servers: topology.grid.lines(servers) for servers, _ in _groups(topology)}
    return {servers: rows for servers, rows in found.items() if rows}


def lower_topology(
    routes: Routes,
    pairs: Iterable[Pair],
    grids: Grids | None = None,
    *,
    schedules: bool = False,
) -> Folded:
    """The network of the C++ core for those pairs of servers, as `FoldedPairs` makes it; `grids`
    as `FoldedPairs.network`."""
    return FoldedPairs(routes, pairs, schedules=schedules).network(routes.topology, grids)


def _rounded(values: Floats) -> Floats:
    """The leading 40 bits, so that equal loads compare equal in any order of additions."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**40) / 2.0**40, exponent)


def ring_hops(
    network: _core.RoutedNetwork, group: Sequence[int], *, schedules: bool = False
) -> set[Pair]:
    """The pairs of neighbours on the rings of `group`, or in its grid; with `schedules` also the
    reverse, and the pairs of an exchange."""
    rows = network.grid(group)
    lines = [*rows, *zip(*rows, strict=True)]
    orders = [ring.servers for ring in network.rings(group)]
    orders += [order for line in lines for order in (tuple(line), tuple(line)[::-1])]
    hops = {hop for order in orders for hop in hops_around(order)}
    if schedules:
        hops |= {(b, a) for a, b in hops} | set(_core.exchange_pairs(group))
    return hops
