"""Plans for networks of any connected shape; pairs without a link get their shortest paths."""

from __future__ import annotations

import itertools

from torch_topoopt.plan import (
    Cluster,
    Demand,
    Group,
    GroupDemand,
    Link,
    Network,
    Plan,
    Ring,
    Route,
)

Cable = tuple[int, int]


def line(servers: int) -> list[Cable]:
    return [(s, s + 1) for s in range(servers - 1)]


def ring(servers: int) -> list[Cable]:
    return [*line(servers), (servers - 1, 0)]


def star(servers: int) -> list[Cable]:
    """Server 0 is the centre."""
    return [(0, s) for s in range(1, servers)]


def binary_tree(servers: int) -> list[Cable]:
    return [((s - 1) // 2, s) for s in range(1, servers)]


def ring_with_chord(servers: int) -> list[Cable]:
    return [*ring(servers), (0, servers // 2)]


def _links(cables: list[Cable]) -> tuple[Link, ...]:
    next_port: dict[int, int] = {}

    def port(server: int) -> int:
        next_port[server] = next_port.get(server, -1) + 1
        return next_port[server]

    forward = [Link(a, port(a), b, port(b)) for a, b in cables]
    return (*forward, *(link.reverse for link in forward))


def shortest_paths(cables: list[Cable], source: int, target: int) -> list[tuple[int, ...]]:
    neighbours: dict[int, list[int]] = {}
    for a, b in cables:
        neighbours.setdefault(a, []).append(b)
        neighbours.setdefault(b, []).append(a)
    paths = [(source,)]
    while True:
        done = [path for path in paths if path[-1] == target]
        if done:
            return done
        paths = [(*p, n) for p in paths for n in sorted(neighbours[p[-1]]) if n not in p]


def _routes(servers: int, cables: list[Cable]) -> tuple[Route, ...]:
    linked = {*cables, *((b, a) for a, b in cables)}
    routes = []
    for source, target in itertools.permutations(range(servers), 2):
        if (source, target) not in linked:
            paths = shortest_paths(cables, source, target)
            routes += [Route(path, 1 / len(paths)) for path in paths]
    return tuple(routes)


def plan_of(servers: int, cables: list[Cable], rings: int = 2, gbps: float = 10.0) -> Plan:
    """A plan with these duplex cables; its group goes `rings` (1 or 2) ways round all servers.

    Rings follow the numbers of the servers, over relays where there is no cable.
    """
    degree = max(sum(s in cable for cable in cables) for s in range(servers))
    if servers > 2:
        degree += degree % 2  # a duplex cluster has an even number of ports; some stay empty
    everyone = tuple(range(servers))
    orders = [everyone, everyone[::-1]][:rings]
    group = Group(everyone, tuple(Ring(order, 1 / len(orders)) for order in orders))
    network = Network(_links(cables), (group,), _routes(servers, cables))
    return Plan.of_network(
        Cluster(servers, degree, gbps),
        network,
        Demand((GroupDemand(everyone, 1 << 20),), ()),
        model="test",
    )
