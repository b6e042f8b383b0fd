"""Routes: the servers that the bytes of a pair pass, as a list or as rules.

A network of n servers has n (n - 1) ordered pairs, and most of their routes follow a rule. A
`RouteTable` holds the rules and behaves like the sequence of routes. If all servers have links of
the same strides, one sequence of strides per offset serves every source. Otherwise a table has the
next hop from each server to each other one. Routes that follow no rule are listed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from collections.abc import Collection

Pair = tuple[int, int]


@dataclass(frozen=True)
class Route:
    """A list of servers from source to destination; `weight` is its part of the pair's bytes."""

    servers: tuple[int, ...]
    weight: float


@dataclass(frozen=True)
class StrideRoute:
    """A route from every server: s, s + strides[0], s + strides[0] + strides[1] ... modulo n."""

    strides: tuple[int, ...]
    weight: float

    def from_server(self, source: int, servers: int) -> Route:
        """The route that starts at `source`, in a network of `servers` servers."""
        way = tuple(stop % servers for stop in itertools.accumulate(self.strides, initial=source))
        return Route(way, self.weight)


@dataclass(frozen=True)
class RouteTable(Sequence[Route]):
    """Rules for the routes of `servers` servers; as a sequence, the routes, sorted by pair.

    The first rule with an entry for the pair (s, t) applies: its routes in `listed`; the routes of
    `by_offset` whose strides sum to t - s modulo `servers`; the walk along `next_hops`, from s to
    next_hops[s][t] and so on. A pair whose next hop is t has a link and needs no route.
    `next_hops[s][s]` is s. `by_offset` and `next_hops` may be empty.
    """

    servers: int
    by_offset: tuple[StrideRoute, ...] = ()
    next_hops: tuple[tuple[int, ...], ...] = ()
    listed: tuple[Route, ...] = ()

    @functools.cached_property
    def _listed(self) -> dict[Pair, tuple[Route, ...]]:
        return routes_by_ends(self.listed)

    @functools.cached_property
    def offset_routes(self) -> dict[int, tuple[StrideRoute, ...]]:
        """(target - source) modulo n -> the routes of `by_offset` for it."""
        table: dict[int, list[StrideRoute]] = {}
        for route in self.by_offset:
            table.setdefault(sum(route.strides) % self.servers, []).append(route)
        return {offset: tuple(routes) for offset, routes in table.items()}

    def of_pair(self, source: int, target: int) -> tuple[Route, ...]:
        """The routes from `source` to another server; empty if the pair is left to its links."""
        if (listed := self._listed.get((source, target))) is not None:
            return listed
        if rules := self.offset_routes.get((target - source) % self.servers):
            return tuple(rule.from_server(source, self.servers) for rule in rules)
        if not self.next_hops or self.next_hops[source][target] == target:
            return ()
        way = [source]
        while way[-1] != target:
            way.append(self.next_hops[way[-1]][target])
        return (Route(tuple(way), 1.0),)

    def through(self, server: int) -> dict[Pair, tuple[Route, ...]]:
        """All routes of each pair that has a route through `server`, ends included.

        Follows the rules backwards from `server`, so the cost grows with the pairs found.
        """
        found = {
            pair: routes
            for pair, routes in self._listed.items()
            if any(server in route.servers for route in routes)
        }
        for pair in (*self._pairs_by_offset(server), *self._pairs_by_next_hops(server)):
            if pair not in found and pair not in self._listed:
                found[pair] = self.of_pair(*pair)
        return found

    def _pairs_by_offset(self, server: int) -> Iterator[Pair]:
        """The pairs with a `by_offset` route through `server`; some repeat."""
        for route in self.by_offset:
            length = sum(route.strides)
            for way in itertools.accumulate(route.strides, initial=0):
                source = (server - way) % self.servers
                yield source, (source + length) % self.servers

    def _pairs_by_next_hops(self, server: int) -> Iterator[Pair]:
        """The pairs whose walk along `next_hops` passes `server`."""
        if not self.next_hops:
            return
        offsets = self.offset_routes
        for target in range(self.servers):
            if target == server:
                reached = [source for source in range(self.servers) if source != server]
            else:
                reached = [server]
                for at in reached:  # grows while iterated: predecessors of predecessors
                    reached += [
                        source
                        for source in self._one_step_before[at]
                        if source != at and self.next_hops[source][target] == at
                    ]
            for source in reached:
                indirect = self.next_hops[source][target] != target
                if indirect and (target - source) % self.servers not in offsets:
                    yield source, target

    @functools.cached_property
    def _one_step_before(self) -> tuple[tuple[int, ...], ...]:
        """Server -> the servers whose walks have it as the next hop."""
        near: list[list[int]] = [[] for _ in range(self.servers)]
        for source, row in enumerate(self.next_hops):
            for hop in set(row):
                near[hop].append(source)
        return tuple(map(tuple, near))

    def __iter__(self) -> Iterator[Route]:
        for source in range(self.servers):
            for target in range(self.servers):
                if source != target:
                    yield from self.of_pair(source, target)

    def __len__(self) -> int:
        ruled = {offset: len(routes) for offset, routes in self.offset_routes.items()}
        count = sum(ruled.values()) * self.servers
        if self.next_hops and not ruled:
            indirect = (
                hop != target
                for source, row in enumerate(self.next_hops)
                for target, hop in enumerate(row)
            )
            count = sum(indirect)
        for (source, target), routes in self._listed.items():
            if ruled:
                replaced = ruled.get((target - source) % self.servers, 0)
            else:
                replaced = bool(self.next_hops) and self.next_hops[source][target] != target
            count += len(routes) - replaced
        return count

    @overload
    def __getitem__(self, index: int) -> Route: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Route, ...]: ...
    def __getitem__(self, index: int | slice) -> Route | tuple[Route, ...]:
        if isinstance(index, int) and index >= 0:
            for route in itertools.islice(self, index, None):
                return route
            raise IndexError(f"route {index} of {len(self)}")
        return tuple(self)[index]


class PairRoutes(Mapping[Pair, tuple[Route, ...]]):
    """Ordered pairs that can exchange bytes -> their routes, computed on access.

    A pair of `adjacent` without a route uses its link. Linked pairs come first.
    """

    def __init__(self, adjacent: Collection[Pair], table: RouteTable) -> None:
        self._adjacent = dict.fromkeys(adjacent)
        self._table = table

    def __getitem__(self, pair: Pair) -> tuple[Route, ...]:
        source, target = pair
        inside = 0 <= source < self._table.servers and 0 <= target < self._table.servers
        routes = self._table.of_pair(source, target) if inside and source != target else ()
        if not routes:
            if pair not in self._adjacent:
                raise KeyError(pair)
            return (Route(pair, 1.0),)
        return routes

    def __iter__(self) -> Iterator[Pair]:
        yield from self._adjacent
        for source in range(self._table.servers):
            for target in range(self._table.servers):
                linked = source == target or (source, target) in self._adjacent
                if not linked and self._table.of_pair(source, target):
                    yield source, target

    def __len__(self) -> int:
        return sum(1 for _ in self)


def routes_by_ends(routes: Sequence[Route]) -> dict[Pair, tuple[Route, ...]]:
    """(source, destination) -> its routes, in the order in which they are listed."""
    table: dict[Pair, list[Route]] = {}
    for route in routes:
        table.setdefault((route.servers[0], route.servers[-1]), []).append(route)
    return {pair: tuple(of_pair) for pair, of_pair in table.items()}
