"""The servers of ranks, and the leaders, routes and rings of ranks that follow from them.

A Plan speaks of servers. A server may have several ranks, one per accelerator. Its ports belong to
its leader, the lowest of its ranks; the ranks of one server reach each other directly, and all
other servers through the leaders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import Ring, Route, shared_by_slowest_link
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from torch_topoopt.plan import Network, Plan

# (source server, target server) -> Gb/s of all links between the two, where it is known
LinkRates = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class RankLayout:
    """`server_of[rank]`; servers are numbered from 0, and one without ranks has no leader."""

    server_of: tuple[int, ...]

    @classmethod
    def even(cls, servers: int, world_size: int) -> RankLayout:
        """As many ranks on every server, in order; raises DocumentError if that does not work."""
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


def forwarded_network(network: Network) -> Network:
    """`network` as ranks see it whose kernels relay: servers without a link reach each other."""
    linked = {(link.source, link.target) for link in network.links}
    linked |= {(target, source) for source, target in linked}
    kept = [r for r in network.routes if (r.servers[0], r.servers[-1]) in linked]
    direct = [Route(pair, 1.0) for pair in network.routes_by_pair() if pair not in linked]
    return dataclasses.replace(network, routes=(*kept, *direct))


def rank_routes(network: Network, layout: RankLayout, rank: int) -> list[Route]:
    """The routes, over ranks, of every pair of ranks whose bytes may pass through `rank`.

    Pairs that have links of their own and no route in the plan are left out, as in the plan.
    """
    listed = {(route.servers[0], route.servers[-1]) for route in network.routes}
    direct: dict[tuple[int, int], int] = {}
    for link in network.links:
        direct[link.source, link.target] = direct.get((link.source, link.target), 0) + 1
    routes = list(network.routes)
    for pair, links in direct.items():
        if pair not in listed:  # one route for each link, so that all of them are used
            routes += [Route(pair, 1 / links)] * links
    by_pair: dict[tuple[int, int], list[Route]] = {}
    for route in routes:
        by_pair.setdefault((route.servers[0], route.servers[-1]), []).append(route)
    here = layout.server_of[rank]
    leads = layout.is_leader(rank)
    expanded = []
    for pair, of_pair in by_pair.items():
        passes = leads and any(here in route.servers for route in of_pair)
        own_links = (layout.leaders[pair[0]], layout.leaders[pair[1]])
        for source in layout.ranks_of[pair[0]]:
            for target in layout.ranks_of[pair[1]]:
                if (source, target) == own_links and pair not in listed:
                    continue
                if passes or rank in (source, target):
                    expanded += [_through(layout, source, r, target) for r in of_pair]
    return expanded


def _through(layout: RankLayout, source: int, route: Route, target: int) -> Route:
    leaders = [layout.leaders[server] for server in route.servers]
    ranks = [source, *leaders, target]
    way = (rank for i, rank in enumerate(ranks) if i == 0 or rank != ranks[i - 1])
    return Route(tuple(way), route.weight)


def rings_of(plan: Plan, servers: list[int], rates: LinkRates | None = None) -> list[Ring]:
    """The rings over `servers`, as simulators have them (csrc/sim/iteration/group_rings.h).

    Where `rates` differ, each ring's share is in proportion to its slowest link.
    """
    members = sorted(set(servers))
    hops = _hops(plan.network)
    rings = _core.rings_of_group(
        plan.network.groups,
        members,
        plan.cluster.ports != "simplex",
        [hops.get((a, b), plan.cluster.servers) for a in members for b in members],
    )
    return list(shared_by_slowest_link(rings, plan.network.routes_by_pair(), rates or {}))


def leader_rings(rings: list[Ring], layout: RankLayout, ranks: list[int]) -> list[Ring]:
    """Rings over the servers of a group -> rings over its members (indices into `ranks`).

    A server is stood for by its first member; the others reduce to it and copy from it.
    """
    first: dict[int, int] = {}
    for member, rank in enumerate(ranks):
        first.setdefault(layout.server_of[rank], member)
    return [Ring(tuple(first[server] for server in ring.servers), ring.share) for ring in rings]


def member_hops(network: Network, layout: RankLayout, ranks: list[int]) -> list[int]:
    """Links from each member of a group to each other one, row by row; 0 inside a server."""
    hops = _hops(network)
    servers = [layout.server_of[rank] for rank in ranks]
    return [hops.get((source, target), 0) for source in servers for target in servers]


def _hops(network: Network) -> dict[tuple[int, int], int]:
    """Links on the shortest route of every pair of servers."""
    return {
        pair: min(len(route.servers) - 1 for route in routes)
        for pair, routes in network.routes_by_pair().items()
    }
