"""Routing by name: what `find_network(routing=...)` and `topoopt plan --routing` choose from, and
policies from a user's file."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import (
    POLICIES,
    Network,
    Pair,
    Route,
    RouteTable,
    StrideRoute,
    validate_network,
)
from torch_topoopt.plan.codec import as_read
from torch_topoopt.topology.routing.coin_change import coin_change
from torch_topoopt.topology.routing.k_shortest_paths import k_shortest_paths
from torch_topoopt.topology.routing.loads import hop_bytes, traffic_matrix
from torch_topoopt.topology.routing.next_hops import least_loaded_next_hops
from torch_topoopt.topology.routing.optimal_routes import link_counts, optimal_routes
from torch_topoopt.topology.routing.pair_bytes import demand_matrix
from torch_topoopt.topology.routing.routes import (
    circulant_offsets,
    group_bytes,
    plan_routes,
    ring_pair_bytes,
)
from torch_topoopt.topology.routing.shortest_paths import hop_distances, neighbours
from torch_topoopt.user_functions import UserFunction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from torch_topoopt.plan import Cluster, Demand, Policy


def routed_by(
    cluster: Cluster,
    demand: Demand,
    network: Network,
    policy: Policy | UserFunction,
    *,
    paths: int,
) -> Network:
    """`network`, planned with shortest paths, with the routes of `policy` instead; validated.

    A user's policy is called as policy(cluster, demand, network) and returns a sequence of Route,
    or a RouteTable: for every ordered pair of servers without a link routes whose weights sum to 1,
    and for pairs with a link such routes or none.

    Raises ValueError as `reroute` does, and DocumentError if the network breaks a rule.
    """
    if isinstance(policy, UserFunction):
        routes = policy(cluster, demand, network)
        if not isinstance(routes, Sequence) or isinstance(routes, str):
            raise policy.returned(routes, "a sequence of Route, or a RouteTable")
        with policy.checking_result():
            routes = routes if isinstance(routes, RouteTable) else tuple(routes)
            routed = as_read(Network, dataclasses.replace(network, routes=routes), "network")
            return validate_network(cluster, routed)
    if policy != "shortest":
        network = reroute(
            network,
            demand,
            cluster.servers,
            policy,
            paths=paths,
            pair_gbps=cluster.pair_gbps(network.links),
        )
    return validate_network(cluster, network)


def reroute(
    network: Network,
    demand: Demand,
    servers: int,
    policy: Policy,
    *,
    paths: int = 4,
    seed: int = 0,
    pair_gbps: Mapping[Pair, float] | None = None,
) -> Network:
    """`network` with the routes of `policy` for `demand`; links and rings stay as they are.

    - "shortest": up to `paths` shortest paths with equal weights for a pair with MP demand, one for
      any other (`plan_routes`, the paper's section 4.2 step 4, which also weighs `pair_gbps`).
    - "single": the same with one path for every pair.
    - "random": one shortest path for every pair, drawn evenly by `seed` from the shortest ones, as
      the released artifact routes.
    - "coin-change": one path for every pair, by Algorithm 4 over the strides that all servers have.
    - "k-shortest": the first `paths` loop-free paths, also longer than the shortest, with equal
      weights for pairs with MP demand without a link.
    - "optimal": the weights that minimise the maximum link load (`optimal_routes`), exactly on
      small networks, elsewhere within 1 % of it; bytes of pairs with a link may be split, too.
      Where `pair_gbps` says what the links from one server to another carry together
      (`Cluster.pair_gbps`), the maximum utilisation; without it all links are alike.

    Raises ValueError for another policy, `paths` below 1, a group of `demand` without rings,
    "coin-change" where the common strides reach not every server, or a pair without a path.
    """
    if policy not in POLICIES:
        raise ValueError(f"routing: {policy!r} is not one of {', '.join(POLICIES)}")
    if paths < 1:
        raise ValueError(f"paths: {paths} is not at least 1")
    if servers < 2:
        return network
    if policy == "optimal":
        routes = _optimal(network, demand, servers, pair_gbps)
    elif policy == "random":
        routes = _random(network, servers, seed)
    elif policy == "coin-change":
        routes = _coin_change(network, servers)
    else:
        pairs = demand_matrix(demand, servers)
        rings = ring_pair_bytes(network.groups, group_bytes(demand))
        count = 1 if policy == "single" else paths
        routes = plan_routes(
            servers, network.links, rings, pairs, paths=count, rates=_unlike(pair_gbps, network)
        )
        if policy == "k-shortest":
            ways = _k_shortest(network, servers, pairs, paths)
            routes = _with_listed(routes, servers, ways)
    return dataclasses.replace(network, routes=routes)


def _unlike(
    pair_gbps: Mapping[Pair, float] | None, network: Network
) -> Mapping[Pair, float] | None:
    """`pair_gbps` if single links are of different rates, else None."""
    if pair_gbps is None:
        return None
    links = Counter((link.source, link.target) for link in network.links)
    return pair_gbps if len({pair_gbps[p] / count for p, count in links.items()}) > 1 else None


def _adjacent(network: Network) -> set[Pair]:
    return {(link.source, link.target) for link in network.links}


def _with_listed(
    routes: tuple[Route, ...] | RouteTable, servers: int, ways: Mapping[Pair, Sequence[Route]]
) -> tuple[Route, ...] | RouteTable:
    """`routes`, but for the pairs of `ways` those."""
    listed = routes.listed if isinstance(routes, RouteTable) else routes
    others = [r for r in listed if (r.servers[0], r.servers[-1]) not in ways]
    added = [route for of_pair in ways.values() for route in of_pair]
    both = sorted((*others, *added), key=lambda r: (r.servers[0], r.servers[-1]))
    if isinstance(routes, RouteTable):
        return dataclasses.replace(routes, listed=tuple(both))
    return tuple(both)


def _by_offset(
    servers: int, ways: Mapping[int, Sequence[tuple[tuple[int, ...], float]]]
) -> RouteTable:
    """Routes from server 0, by target, as rules for every source."""
    rules = [
        StrideRoute(tuple((b - a) % servers for a, b in itertools.pairwise(way)), weight)
        for _, of_target in sorted(ways.items())
        for way, weight in of_target
    ]
    return RouteTable(servers, tuple(rules))


def _optimal(
    network: Network,
    demand: Demand,
    servers: int,
    pair_gbps: Mapping[Pair, float] | None,
) -> tuple[Route, ...] | RouteTable:
    traffic = traffic_matrix(network, demand, servers)
    capacity = link_counts(servers, network.links)
    for pair, gbps in (pair_gbps or {}).items():
        capacity[pair] = gbps
    best = optimal_routes(capacity, traffic)
    adjacent = _adjacent(network)
    # a pair that only uses its links needs no route
    best_ways = {
        pair: routes
        for pair, routes in best.routes.items()
        if not (pair in adjacent and len(routes) == 1 and len(routes[0].servers) == 2)
    }
    if best.period == 1:
        ways = {
            target: [(route.servers, route.weight) for route in routes]
            for (_, target), routes in best_ways.items()
        }
        for target, coins in enumerate(coin_change(servers, circulant_offsets(servers, adjacent))):
            if target and (0, target) not in best.routes and (0, target) not in adjacent:
                way = tuple(itertools.accumulate(coins, initial=0))
                ways[target] = [(tuple(stop % servers for stop in way), 1.0)]
        return _by_offset(servers, ways) if ways else ()
    listed = {
        ((source + by) % servers, (target + by) % servers): [
            Route(tuple((stop + by) % servers for stop in route.servers), route.weight)
            for route in routes
        ]
        for (source, target), routes in best_ways.items()
        for by in range(0, servers, best.period)
    }
    if len(listed.keys() | adjacent) == servers * (servers - 1):
        return _with_listed((), servers, listed)
    # the other pairs take shortest ways over what the demand leaves
    load = dict.fromkeys(adjacent, 0.0)
    carried = hop_bytes(
        dataclasses.replace(network, routes=_with_listed((), servers, listed)), traffic
    )
    for pair in load:
        load[pair] = float(carried[pair])
    rules = RouteTable(servers, (), least_loaded_next_hops(servers, load))
    return _with_listed(rules, servers, listed)


def _coin_change(network: Network, servers: int) -> RouteTable | tuple[Route, ...]:
    links: dict[int, int] = {}
    adjacent = _adjacent(network)
    for source, target in adjacent:
        offset = (target - source) % servers
        links[offset] = links.get(offset, 0) + 1
    coins = sorted(offset for offset, count in links.items() if count == servers)
    try:
        sequences = coin_change(servers, coins)
    except ValueError:
        found = f"only {coins} here" if coins else "none here"
        raise ValueError(
            "routing: coin-change needs strides that all servers have and that lead everywhere "
            f"({found}); take another routing, or mode paper"
        ) from None
    ways = {
        target: [(tuple(stop % servers for stop in itertools.accumulate(route, initial=0)), 1.0)]
        for target, route in enumerate(sequences)
        if len(route) > 1
    }
    return _by_offset(servers, ways) if ways else ()


def _random(network: Network, servers: int, seed: int) -> tuple[Route, ...]:
    adjacent = _adjacent(network)
    table = neighbours(servers, adjacent)
    incoming = neighbours(servers, {(b, a) for a, b in adjacent})
    draw = random.Random(seed)
    routes = []
    for source in range(servers):
        distance = hop_distances(table, source)
        ways = [0] * servers  # shortest paths from the source, so that each is as likely
        ways[source] = 1
        nearest_first = sorted(range(servers), key=lambda server: distance[server])
        if distance[nearest_first[0]] < 0:
            lost = nearest_first[0]
            raise ValueError(f"network: server {lost} cannot be reached from server {source}")
        for server in nearest_first[1:]:
            ways[server] = sum(
                ways[b] for b in incoming[server] if distance[b] == distance[server] - 1
            )
        for target in range(servers):
            if distance[target] < 2:
                continue
            way = [target]
            while way[-1] != source:
                near = [b for b in incoming[way[-1]] if distance[b] == distance[way[-1]] - 1]
                way += draw.choices(near, [ways[b] for b in near])
            routes.append(Route(tuple(reversed(way)), 1.0))
    return tuple(routes)


def _k_shortest(
    network: Network, servers: int, pairs: NDArray[np.int64], count: int
) -> dict[Pair, list[Route]]:
    """Routes of the pairs with MP demand and no link; per offset where all servers are alike."""
    adjacent = _adjacent(network)
    table = neighbours(servers, adjacent)
    incoming = neighbours(servers, {(b, a) for a, b in adjacent})
    alike = bool(circulant_offsets(servers, adjacent))
    known: dict[Pair, list[tuple[int, ...]]] = {}
    routes = {}
    for source, target in np.argwhere(pairs > 0).tolist():
        if (source, target) in adjacent:
            continue
        start: Pair = (0, (target - source) % servers) if alike else (source, target)
        if start not in known:
            known[start] = k_shortest_paths(table, incoming, *start, count)
        by = source - start[0]
        routes[source, target] = [
            Route(tuple((stop + by) % servers for stop in way), 1 / len(known[start]))
            for way in known[start]
        ]
    return routes
