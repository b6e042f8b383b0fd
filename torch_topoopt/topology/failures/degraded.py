"""The network that a plan is left with when a link or a server is lost.

The rings that are given up and some ways between ring neighbours were chosen beforehand and stand
in the plan (`failures`); everything else follows from the network by the rules here, the same on
every server. Pure functions.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch_topoopt.plan import Group, Network, Pair, Ring, Route, links_lost_with
from torch_topoopt.topology.routing.shortest_paths import hop_distances, neighbours

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence, Set

    from torch_topoopt.plan import Cluster, Failure, Link


class DisconnectedError(ValueError):
    """The rest of a network is not connected, so nothing can be routed over it."""


class Survivors:
    """The links that are left, and the rule for routes that must be found anew."""

    def __init__(self, servers: int, adjacent: Collection[Pair]) -> None:
        self.table = neighbours(servers, adjacent)
        self._incoming = neighbours(servers, [(b, a) for a, b in adjacent])
        self._hops_to: dict[int, list[int]] = {}

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """A path with the fewest hops; raises DisconnectedError if there is none.

        Where several servers are equally near to the target, the choice turns with source and
        target, so that pairs that lost the same link do not all take the same way.
        """
        if target not in self._hops_to:
            self._hops_to[target] = hop_distances(self._incoming, target)
        hops = self._hops_to[target]
        if hops[source] < 0:
            raise DisconnectedError(f"no way is left from server {source} to {target}")
        way = [source]
        while way[-1] != target:
            near = [s for s in self.table[way[-1]] if hops[s] == hops[way[-1]] - 1]
            way.append(near[(source + target) % len(near)])
        return tuple(way)

    def routes(self, pair: Pair, planned: Iterable[Route], lost: Set[Pair]) -> list[Route]:
        """The routes of a pair: those `planned` over none of the `lost` pairs, else a new one.

        Those that are left share all bytes in the proportion of their weights.
        """
        planned = tuple(planned)
        left = [r for r in planned if lost.isdisjoint(pairwise(r.servers))]
        if not left:
            return [Route(self.path(*pair), 1.0)]
        if len(left) == len(planned):
            return left
        total = sum(route.weight for route in left)
        return [Route(route.servers, route.weight / total) for route in left]


def ring_without(ring: Ring, server: int | None) -> tuple[int, ...]:
    """The order of a ring that leaves out a lost server."""
    return tuple(s for s in ring.servers if s != server)


def degraded_network(
    cluster: Cluster, network: Network, failure: Failure, *, server: bool = False
) -> Network:
    """The rest of `network` after the loss of link, or with `server` of server, `failure.lost`.

    Servers and ports keep their numbers; a lost server has no links and is in no group, and a group
    of it alone is gone. Of groups that differed only by the lost server, the first stays. The
    network passes `validate_network`, with a lost server as `without`.
    Raises DisconnectedError if not all servers can reach each other.
    """
    lost_server = failure.lost if server else None
    if not failure.connected:
        where = f"server {failure.lost}" if server else _cable_name(network.links[failure.lost])
        raise DisconnectedError(f"without {where} the servers cannot all reach each other")
    links = links_left(cluster, network, failure.lost, server=server)
    adjacent = {(link.source, link.target) for link in links}
    lost = {(link.source, link.target) for link in network.links} - adjacent
    dropped = {drop.group: set(drop.rings) for drop in failure.dropped}
    groups: dict[frozenset[int], Group] = {}
    for i, group in enumerate(network.groups):
        left = _group_left(group, dropped.get(i, set()), lost_server)
        groups.setdefault(frozenset(left.servers), left)
    routes = _routes_left(
        network, Survivors(cluster.servers, adjacent), adjacent, lost, failure.detours, lost_server
    )
    return Network(tuple(links), tuple(group for group in groups.values() if group.servers), routes)


def links_left(cluster: Cluster, network: Network, lost: int, *, server: bool) -> list[Link]:
    """The links without those of server `lost`, or without link `lost` and its other direction."""
    if server:
        return [link for link in network.links if lost not in (link.source, link.target)]
    gone = links_lost_with(cluster, network, lost)
    return [link for i, link in enumerate(network.links) if i not in gone]


def _cable_name(link: Link) -> str:
    return f"the link from server {link.source} to {link.target}"


def _group_left(group: Group, dropped: Collection[int], server: int | None) -> Group:
    members = tuple(s for s in group.servers if s != server)
    if len(members) < 2:
        return Group(members, ())
    kept = [ring for j, ring in enumerate(group.rings) if j not in dropped]
    total = sum(ring.share for ring in kept)
    return Group(
        members, tuple(Ring(ring_without(ring, server), ring.share / total) for ring in kept)
    )


def _routes_left(
    network: Network,
    survivors: Survivors,
    adjacent: Collection[Pair],
    lost: Set[Pair],
    detours: Sequence[Route],
    server: int | None,
) -> tuple[Route, ...]:
    """For every pair without a link, and for those with one whose plan says otherwise."""
    chosen: dict[Pair, list[Route]] = {}
    for route in detours:
        chosen.setdefault((route.servers[0], route.servers[-1]), []).append(route)
    planned = dict(network.routes_by_pair())
    routes: list[Route] = []
    for pair in sorted(planned):
        if server in pair:
            continue
        found = chosen.get(pair) or survivors.routes(pair, planned[pair], lost)
        if pair not in adjacent or found != [Route(pair, 1.0)]:
            routes += found
    return tuple(routes)
