"""Rings and routes on cables that are given: any connected graph, of unequal bandwidths.

TopologyFinder chooses cables with the rings; these cables exist already, plugged by people or found
by discovery. Pure functions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from torch_topoopt.plan import (
    Cluster,
    Group,
    Link,
    Network,
    Pair,
    Ring,
    Route,
    shared_by_slowest_link,
    validate_network,
)
from torch_topoopt.plan.checks import unreachable
from torch_topoopt.topology.finder.crossed_rings import crossing_of, group_of_rings
from torch_topoopt.topology.finder.found_torus import torus_cycles, torus_of
from torch_topoopt.topology.finder.multi_hop_rings import short_ring
from torch_topoopt.topology.routing.port_rates import LoadWithBytes, path_weights
from torch_topoopt.topology.routing.shortest_paths import (
    hop_distances,
    least_loaded_paths,
    neighbours,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNKNOWN_GBPS = 10.0  # assumed for interfaces of unknown speed
_PATHS = 4  # shortest paths that share the bytes of a pair without a link
_SEARCH_STEPS = 200_000  # for one ring; about a second


@dataclass(frozen=True)
class Cable:
    """A connection between two servers, over one interface of each."""

    servers: Pair  # ascending
    interfaces: tuple[str, str]
    gbps: float


def network_of_cables(count: int, links: tuple[Link, ...], cables: list[Cable]) -> Network:
    """The network of servers 0..count-1 whose `links`, of duplex cables, connect all of them.

    The one group is all servers. Its rings use cables only, the fastest first; remaining cables
    carry further rings. If the rest pairs up the servers, it is on rings, too, if these pairs cross
    a ring (`crossed_rings`) and make an AllReduce faster. If there is no such ring, one short walk
    with relays is the ring. For a torus of equal cables the group has the grid, and as rings the
    two cycles that use every cable. Shares of rings, and of a pair's paths, are in proportion to
    their slowest links. Raises DocumentError if the network breaks a rule, for example if links do
    not connect all servers.
    """
    adjacent = {(link.source, link.target) for link in links}
    of_pair: dict[Pair, list[float]] = {}
    for cable in cables:
        for pair in (cable.servers, cable.servers[::-1]):
            of_pair.setdefault(pair, []).append(cable.gbps)
    # parallel cables share evenly, so the slowest of them decides
    rates = {pair: len(gbps) * min(gbps) for pair, gbps in of_pair.items()}
    groups: tuple[Group, ...] = ()
    routes: tuple[Route, ...] = ()
    if unreachable(range(count), adjacent) is None:
        alike = len({gbps for cable_gbps in of_pair.values() for gbps in cable_gbps}) < 2
        routes = _routes(count, adjacent, None if alike else rates)
        table = Network(links, (), routes).routes_by_pair()
        grid = torus_of(count, (cable.servers for cable in cables)) if alike else ()
        shared = (
            shared_by_slowest_link(rings, table, rates)
            for rings in _ways_to_ring(count, cables, adjacent, torus_cycles(grid) if grid else [])
        )
        best = min(shared, key=lambda rings: _busiest(rings, table, rates))
        groups = (Group(tuple(range(count)), best, grid),)
    ports = 1 + max((link.source_port for link in links), default=0)
    network = Network(links, groups, routes)
    return validate_network(Cluster(count, ports, UNKNOWN_GBPS), network)


def _routes(
    count: int, adjacent: set[Pair], rates: Mapping[Pair, float] | None
) -> tuple[Route, ...]:
    """For every pair without a link its shortest paths, up to four, the least busy ones.

    Each pair counts as much; with `rates`, for links that are not alike, over the rate of a link.
    """
    table = neighbours(count, adjacent)
    load = dict.fromkeys(adjacent, 0.0)
    routes = []
    for source in range(count):
        if len(table[source]) == count - 1:
            continue
        distance = hop_distances(table, source)
        for target in range(count):
            if target == source or (source, target) in adjacent:
                continue
            # cables carry both directions, so reachability is symmetric
            seen: Mapping[Pair, float] = load
            if rates is not None:
                seen = LoadWithBytes(load, rates, 1.0)
            paths = least_loaded_paths(table, distance, target, _PATHS, seen)
            for path, weight in zip(paths, path_weights(paths, rates), strict=True):
                routes.append(Route(path, weight))
                for hop in pairwise(path):
                    load[hop] += weight / (1.0 if rates is None else rates[hop])
    return tuple(routes)


def _ways_to_ring(
    count: int, cables: list[Cable], adjacent: set[Pair], of_torus: list[tuple[int, ...]]
) -> Iterator[tuple[Ring, ...]]:
    if count == 1:
        yield ()
        return
    everyone = range(count)
    if of_torus:  # they use every cable, both ways
        yield group_of_rings(everyone, of_torus, duplex=True).rings
        return
    orders, spare = _disjoint_cycles(count, cables)
    if not orders:
        if count > 2:
            table = neighbours(count, adjacent)
            distances = [hop_distances(table, server) for server in everyone]
            orders = [short_ring(everyone, distances)]
        else:
            orders = [(0, 1)]
        yield group_of_rings(everyone, orders, duplex=True).rings
        return
    yield group_of_rings(everyone, orders, duplex=True).rings
    at, crossed = crossing_of(orders, [cable.servers for cable in spare])
    if crossed:
        orders.append(orders.pop(at))
        yield group_of_rings(everyone, orders, duplex=True, crossed=crossed).rings


def _busiest(
    rings: tuple[Ring, ...], table: Mapping[Pair, tuple[Route, ...]], rates: Mapping[Pair, float]
) -> float:
    """Time of the busiest hop in an AllReduce, in units of one rate's."""
    load: defaultdict[Pair, float] = defaultdict(float)
    for ring in rings:
        for pair in ring.hops:
            for route in table[pair]:
                for hop in pairwise(route.servers):
                    load[hop] += ring.share * route.weight
    return max((sent / rates[hop] for hop, sent in load.items()), default=0.0)


def _disjoint_cycles(count: int, cables: list[Cable]) -> tuple[list[tuple[int, ...]], list[Cable]]:
    """Cycles over all servers, fastest first, that share no interface, and the cables left."""
    cycles: list[tuple[int, ...]] = []
    free = cables
    while cycle := _fastest_cycle(count, free):
        cycles.append(cycle)
        hops = {tuple(sorted(hop)) for hop in zip(cycle, (*cycle[1:], cycle[0]), strict=True)}
        busy = {
            end
            for cable in free
            if cable.servers in hops
            for end in zip(cable.servers, cable.interfaces, strict=True)
        }
        free = [
            cable
            for cable in free
            if busy.isdisjoint(zip(cable.servers, cable.interfaces, strict=True))
        ]
    return cycles, free


def _fastest_cycle(count: int, cables: list[Cable]) -> tuple[int, ...] | None:
    """A cycle over all servers whose slowest hop is as fast as can be; None if there is none."""
    rates: dict[Pair, float] = {}
    for cable in cables:
        rates[cable.servers] = rates.get(cable.servers, 0.0) + cable.gbps
    for least in sorted(set(rates.values()), reverse=True):
        if cycle := hamiltonian_cycle(count, {p: r for p, r in rates.items() if r >= least}):
            return cycle
    return None


def hamiltonian_cycle(count: int, pairs: Mapping[Pair, float]) -> tuple[int, ...] | None:
    """A cycle over servers 0..count-1 along `pairs` (ascending), from server 0; None if none found.

    The natural order if that is one. Else a search with backtracking that continues where the
    fewest ways lead on (Warnsdorff's rule), which gives up after a bounded number of steps.
    """
    natural = tuple(range(count))
    if all(tuple(sorted((s, (s + 1) % count))) in pairs for s in natural):
        return natural
    table = neighbours(count, [*pairs, *((b, a) for a, b in pairs)])
    if any(len(near) < 2 for near in table):
        return None
    ways = [len(near) for near in table]  # to servers not yet visited
    visited = [False] * count
    path: list[int] = []
    choices: list[list[int]] = []

    def visit(server: int) -> None:
        visited[server] = True
        path.append(server)
        for near in table[server]:
            ways[near] -= 1
        ahead = [near for near in table[server] if not visited[near]]
        choices.append(sorted(ahead, key=lambda near: (-ways[near], -near)))  # taken from the end

    def retreat() -> None:
        server = path.pop()
        choices.pop()
        visited[server] = False
        for near in table[server]:
            ways[near] += 1

    visit(0)
    for _ in range(_SEARCH_STEPS):
        if len(path) == count and 0 in table[path[-1]]:
            return tuple(path)
        if choices[-1]:
            visit(choices[-1].pop())
        else:
            retreat()
            if not path:
                return None
    return None
