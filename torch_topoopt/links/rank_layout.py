"""Maps ranks to servers, and derives the leaders, routes and rings of ranks.

A Plan is about servers. A server may have several ranks, one per accelerator. Its lowest rank, the
leader, uses its ports; ranks reach each other directly inside a server, else through leaders.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import Ring, Route, shared_by_slowest_link
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from torch_topoopt.plan import Network, Plan
    from torch_topoopt.plan.routes import Pair

# (source server, target server) -> total Gb/s of the links between them, if known
LinkRates = Mapping[tuple[int, int], float]

_MOST_COPIES = 12  # of a route over parallel links, as in csrc/transport/endpoint/routes.cc


@dataclass(frozen=True)
class RankLayout:
    """`server_of[rank]`; servers are numbered from 0, and one without ranks has no leader."""

    server_of: tuple[int, ...]

    @classmethod
    def even(cls, servers: int, world_size: int) -> RankLayout:
        """Equally many ranks on every server, in order; raises DocumentError if not divisible."""
        if world_size % servers:
            raise DocumentError(
                f"the plan is for {servers} servers, but this job has {world_size} ranks; "
                f"every server needs equally many, so start {servers} ranks or a multiple of it"
            )
        return cls(tuple(rank // (world_size // servers) for rank in range(world_size)))

    @cached_property
    def ranks_of(self) -> tuple[tuple[int, ...], ...]:
        """Server -> its ranks, ascending."""
        ranks: list[list[int]] = [[] for _ in range(max(self.server_of) + 1)]
        for rank, server in enumerate(self.server_of):
            ranks[server].append(rank)
        return tuple(tuple(of_server) for of_server in ranks)

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """Server -> its leader; -1 if it has no rank."""
        return tuple(ranks[0] if ranks else -1 for ranks in self.ranks_of)

    def is_leader(self, rank: int) -> bool:
        return self.leaders[self.server_of[rank]] == rank

    def peers(self, rank: int) -> tuple[int, ...]:
        """The other ranks of the same server."""
        return tuple(r for r in self.ranks_of[self.server_of[rank]] if r != rank)


def rank_routes(
    network: Network, layout: RankLayout, rank: int, *, forwarded: bool = False
) -> list[Route]:
    """The routes, over ranks, of every pair of ranks whose bytes may pass through `rank`.

    As in the plan, linked pairs without a route of their own are omitted. Parallel links share the
    bytes of a route: copies of it take them in turn. `forwarded`: the hosts' kernels relay, so
    servers without a link reach each other directly.
    """
    here = layout.server_of[rank]
    links = Counter((link.source, link.target) for link in network.links)
    routed = network.routes_through(here)
    own = {pair: (Route(pair, 1.0),) for pair in links if here in pair}
    if forwarded:
        linked = {*links, *((target, source) for source, target in links)}
        routed = {
            pair: routes if pair in linked else (Route(pair, 1.0),)
            for pair, routes in routed.items()
            if pair in linked or here in pair
        }
    leads = layout.is_leader(rank)
    parallel = {pair: count for pair, count in links.items() if count > 1}
    expanded = []
    for pair, routes in (own | routed).items():
        if parallel:
            routes = tuple(copy for route in routes for copy in _copies(route, parallel))
        own_links = (layout.leaders[pair[0]], layout.leaders[pair[1]])
        for source in layout.ranks_of[pair[0]]:
            for target in layout.ranks_of[pair[1]]:
                if (source, target) == own_links and pair not in routed:
                    continue
                if leads or rank in (source, target):
                    expanded += [_through(layout, source, r, target) for r in routes]
    return expanded


def _copies(route: Route, parallel: Mapping[Pair, int]) -> list[Route]:
    """A copy of `route` for each of its parallel links, or more, so that all are used alike."""
    counts = (parallel.get(hop, 1) for hop in itertools.pairwise(route.servers))
    copies = min(math.lcm(*counts), _MOST_COPIES)
    return [Route(route.servers, route.weight / copies)] * copies


def _through(layout: RankLayout, source: int, route: Route, target: int) -> Route:
    leaders = [layout.leaders[server] for server in route.servers]
    ranks = [source, *leaders, target]
    way = (rank for i, rank in enumerate(ranks) if i == 0 or rank != ranks[i - 1])
    return Route(tuple(way), route.weight)


def rings_of(plan: Plan, servers: list[int], rates: LinkRates | None = None) -> list[Ring]:
    """The rings over `servers`, equal to the simulators' (csrc/sim/iteration/group_rings.h).

    Where `rates` differ, each ring's share is in proportion to its slowest link.
    """
    members = sorted(set(servers))
    table = plan.network.routes_by_pair()

    def hops() -> list[int]:
        far = plan.cluster.servers
        pairs = ((source, target) for source in members for target in members)
        return [_links_between(table.get(pair, ()), default=far) for pair in pairs]

    both_ways = plan.cluster.ports != "simplex"
    rings = _core.rings_of_group(plan.network.groups, members, both_ways, hops)
    return list(shared_by_slowest_link(rings, table, rates or {}))


def _links_between(routes: Sequence[Route], default: int) -> int:
    """The number of links on the shortest of the routes."""
    return min((len(route.servers) - 1 for route in routes), default=default)


def group_routes(plan: Plan, servers: Sequence[int], *, forwarded: bool) -> list[Route]:
    """The routes between all pairs of some `servers`, and none if they are all of the plan's.

    `forwarded`: the hosts' kernels relay, along the heaviest route of a pair.
    """
    members = sorted(set(servers))
    if len(members) == plan.cluster.servers:
        return []
    table = plan.network.routes_by_pair()
    found: list[Route] = []
    for pair in itertools.permutations(members, 2):
        routes = table.get(pair, ())
        if forwarded and routes:
            found.append(max(routes, key=lambda route: route.weight))
        else:
            found += routes
    return found


def grid_of(plan: Plan, servers: list[int]) -> list[list[int]]:
    """The rows of the planned torus of exactly these `servers`."""
    members = sorted(set(servers))
    for group in plan.network.groups:
        if sorted(group.servers) == members:
            return [list(row) for row in group.grid]
    return []


def leader_grid(grid: list[list[int]], layout: RankLayout, ranks: list[int]) -> list[list[int]]:
    """A grid of a group's servers -> a grid of its members, numbered as in `leader_rings`."""
    first = _first_members(layout, ranks)
    return [[first[server] for server in row] for row in grid]


def leader_rings(rings: list[Ring], layout: RankLayout, ranks: list[int]) -> list[Ring]:
    """Rings over the servers of a group -> rings over its members (indices into `ranks`).

    The first member on a server represents it; the others reduce to it and copy from it.
    """
    first = _first_members(layout, ranks)
    return [Ring(tuple(first[server] for server in ring.servers), ring.share) for ring in rings]


def _first_members(layout: RankLayout, ranks: list[int]) -> dict[int, int]:
    """Server -> the first of a group's members on it."""
    first: dict[int, int] = {}
    for member, rank in enumerate(ranks):
        first.setdefault(layout.server_of[rank], member)
    return first
