"""The network among the remaining servers of a plan, after any servers are lost.

Planned failures, of one link or one server, are in `degraded`. Here rings and routes are computed
again, as for given cables. Pure functions.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from torch_topoopt.plan import Group, Link, Network, Ring, Route
from torch_topoopt.plan.checks import unreachable
from torch_topoopt.topology.failures.degraded import DisconnectedError, Survivors
from torch_topoopt.topology.finder.fixed_network import Cable, network_of_cables

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch_topoopt.plan import Cluster


def remaining_network(cluster: Cluster, network: Network, servers: Collection[int]) -> Network:
    """The links between `servers`, with rings over all of them and routes over no others.

    Servers and ports keep their numbers. Raises DisconnectedError if the remaining links do not
    connect all of `servers`.
    """
    members = sorted(servers)
    left = set(members)
    links = tuple(e for e in network.links if e.source in left and e.target in left)
    apart = unreachable(members, {(link.source, link.target) for link in links})
    if apart is not None:
        gone = sorted(set(range(cluster.servers)) - left)
        raise DisconnectedError(
            f"servers {members[0]} and {apart} cannot reach each other over the plan's links "
            f"without {'server' if len(gone) == 1 else 'servers'} {', '.join(map(str, gone))}"
        )
    if len(members) == 1:
        return Network((), (), ())
    number = {server: i for i, server in enumerate(members)}
    compact = tuple(
        Link(number[e.source], e.source_port, number[e.target], e.target_port) for e in links
    )
    if cluster.ports == "simplex":
        routes = _shortest_routes(len(members), compact)
        groups: tuple[Group, ...] = ()  # rings are found on demand
    else:
        cables = [
            Cable(
                (min(near.source, near.target), max(near.source, near.target)),
                _port_names(near),
                cluster.gbps_of(far),
            )
            for near, far in zip(compact, links, strict=True)
            if (near.source, near.source_port) < (near.target, near.target_port)
        ]
        found = network_of_cables(len(members), compact, cables)
        routes, groups = tuple(found.routes), found.groups
    return Network(
        links,
        tuple(_named(group, members) for group in groups),
        tuple(Route(tuple(members[i] for i in r.servers), r.weight) for r in routes),
    )


def _port_names(link: Link) -> tuple[str, str]:
    """In the order of the servers' numbers; ports are interfaces of their own."""
    ends = sorted([(link.source, link.source_port), (link.target, link.target_port)])
    return str(ends[0][1]), str(ends[1][1])


def _named(group: Group, members: list[int]) -> Group:
    rings = tuple(Ring(tuple(members[i] for i in r.servers), r.share) for r in group.rings)
    return Group(tuple(members[i] for i in group.servers), rings)


def _shortest_routes(count: int, links: tuple[Link, ...]) -> tuple[Route, ...]:
    adjacent = {(link.source, link.target) for link in links}
    survivors = Survivors(count, adjacent)
    return tuple(
        Route(survivors.path(*pair), 1.0)
        for pair in permutations(range(count), 2)
        if pair not in adjacent
    )
