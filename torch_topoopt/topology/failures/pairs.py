"""Model-parallel bytes on the remaining links after a failure, for all pairs at once."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from torch_topoopt.plan import Demand, Pair, Route


class PairTraffic:
    """The pairs of `demand` that exchange bytes, and every hop of their routes, as columns.

    `edges` numbers the linked pairs. A hop belongs to a route and a route to a pair.
    """

    def __init__(
        self, demand: Demand, planned: Mapping[Pair, tuple[Route, ...]], edges: Mapping[Pair, int]
    ) -> None:
        sizes: dict[Pair, int] = {}
        for asked in demand.pairs:
            if asked.size_bytes:
                pair = (asked.source, asked.target)
                sizes[pair] = sizes.get(pair, 0) + asked.size_bytes
        self.number = {pair: i for i, pair in enumerate(sizes)}
        self.size_bytes = np.array(list(sizes.values()), dtype=float)
        self.ends = np.array(list(sizes), dtype=np.int64).reshape(-1, 2)
        self.edges = edges
        route_pair: list[int] = []
        weights: list[float] = []
        hop_route: list[int] = []
        hop_edge: list[int] = []
        for pair, i in self.number.items():
            for route in planned[pair]:
                for hop in pairwise(route.servers):
                    hop_route.append(len(route_pair))
                    hop_edge.append(edges[hop])
                route_pair.append(i)
                weights.append(route.weight)
        self.route_pair = np.array(route_pair, dtype=np.int64)
        self.weight = np.array(weights)
        self.hop_edge = np.array(hop_edge, dtype=np.int64)
        self._hop_route = np.array(hop_route, dtype=np.int64)
        # where the routes of a pair begin, the hops of a route, the hops over an edge
        self._routes_of_pair = _begins(self.route_pair, len(self.size_bytes))
        self._hops_of_route = _begins(self._hop_route, len(self.weight))
        order = np.argsort(self.hop_edge, kind="stable")
        self._hops_over_edge = _begins(self.hop_edge[order], len(edges))
        self._route_by_edge = self._hop_route[order]
        carried = self.weight * self.size_bytes[self.route_pair]
        self.load: NDArray[np.float64] = np.zeros(len(edges))
        self.load += np.bincount(self.hop_edge, carried[self._hop_route], len(edges))

    def load_without(
        self,
        lost: Collection[int],
        left: Collection[Pair],
        servers: int,
        server: int | None,
        detours: Mapping[Pair, list[Route]],
    ) -> NDArray[np.float64]:
        """Bytes on every edge without the edges `lost`, by the rules of `degraded_network`.

        `left` are the remaining linked pairs, `server` is lost too, and `detours` come first.
        """
        load = self.load.copy()
        if not self.number:
            return load
        rerouted = {
            self.number[pair]: routes for pair, routes in detours.items() if pair in self.number
        }
        gone = np.array(list(rerouted), dtype=np.int64)
        cut = self._route_by_edge[_ranges(self._hops_over_edge, np.array(lost, dtype=np.int64))]
        moved = np.unique(np.concatenate((self.route_pair[cut], gone)))
        routes = _ranges(self._routes_of_pair, moved)
        of_pair = np.searchsorted(moved, self.route_pair[routes])
        is_left = ~np.isin(routes, cut) & ~np.isin(self.route_pair[routes], gone)
        total = np.bincount(of_pair, self.weight[routes] * is_left, len(moved))
        scale = np.divide(1.0, total, out=np.zeros(len(moved)), where=total > 0)
        change = self.weight[routes] * (is_left * scale[of_pair] - 1)
        carried = np.repeat(
            change * self.size_bytes[self.route_pair[routes]],
            np.diff(self._hops_of_route)[routes],
        )
        hops = self.hop_edge[_ranges(self._hops_of_route, routes)]
        load += np.bincount(hops, carried, len(load))
        load[list(lost)] = 0.0  # clear rounding errors
        at_server = (self.ends[moved] == (-1 if server is None else server)).any(axis=1)
        anew = moved[(total == 0) & ~at_server & ~np.isin(moved, gone)]
        if len(anew):
            self._add_walks(load, anew, left, servers)
        for number, detour in rerouted.items():
            for route in detour:
                for hop in pairwise(route.servers):
                    load[self.edges[hop]] += route.weight * self.size_bytes[number]
        return load

    def _add_walks(
        self,
        load: NDArray[np.float64],
        anew: NDArray[np.int64],
        left: Collection[Pair],
        servers: int,
    ) -> None:
        """Adds the bytes of the pairs `anew`, which take the paths that `Survivors.path` finds."""
        hops = hop_matrix(left, servers)
        edge_of = np.full((servers, servers), -1)
        for pair in left:
            edge_of[pair] = self.edges[pair]
        following = _neighbour_table(left, servers)
        source, target = self.ends[anew].T
        size_bytes, here = self.size_bytes[anew], source
        while len(here):
            near = following[here]
            nearer = (near >= 0) & (hops[near, target[:, None]] == hops[here, target][:, None] - 1)
            which = (source + target) % nearer.sum(axis=1) + 1
            chosen = (nearer.cumsum(axis=1) == which[:, None]).argmax(axis=1)
            then = near[np.arange(len(here)), chosen]
            load += np.bincount(edge_of[here, then], size_bytes, len(load))
            going = then != target
            source, target, here = source[going], target[going], then[going]
            size_bytes = size_bytes[going]


def _begins(sorted_ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The start of each of the ids 0..count-1 in a sorted column, and the end."""
    return np.searchsorted(sorted_ids, np.arange(count + 1))


def _ranges(begins: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of all rows of `ids`, one id after the other."""
    first, lengths = begins[ids], begins[ids + 1] - begins[ids]
    skipped = np.cumsum(lengths) - lengths
    return np.repeat(first - skipped, lengths) + np.arange(lengths.sum())


def hop_matrix(adjacent: Collection[Pair], servers: int) -> NDArray[np.int64]:
    """Least hops, [source, target]; -1 where there is no path."""
    # Rows are gathered, not multiplied: threads of a matrix product spin where the machine is busy.
    following = _neighbour_table(adjacent, servers)  # -1: the empty row, added below
    known = np.eye(servers, dtype=bool)
    hops = np.where(known, 0, -1)
    frontier, distance = known, 0
    while frontier.any():
        distance += 1
        beyond = np.vstack((frontier, np.zeros((1, servers), dtype=bool)))
        frontier = beyond[following].any(axis=1) & ~known
        hops[frontier] = distance
        known = known | frontier
    return hops


def _neighbour_table(adjacent: Collection[Pair], servers: int) -> NDArray[np.int64]:
    """The servers that each server's links reach, ascending, filled up with -1."""
    rows: list[list[int]] = [[] for _ in range(servers)]
    for source, target in sorted(adjacent):
        rows[source].append(target)
    table = np.full((servers, max(map(len, rows), default=0)), -1)
    for server, row in enumerate(rows):
        table[server, : len(row)] = row
    return table
