"""The network half of a plan: links by port, rings of groups, routes of pairs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A directed connection from a server's port to another server's port."""

    source: int
    source_port: int
    target: int
    target_port: int

    @property
    def reverse(self) -> Link:
        """The other direction of the same cable."""
        return Link(self.target, self.target_port, self.source, self.source_port)


@dataclass(frozen=True)
class Ring:
    """A cyclic order of a group's servers; data moves from servers[i] to servers[i + 1].

    `share` is the fraction of each AllReduce's bytes that this ring carries. Consecutive servers
    without a link between them are reached over routes (coin-change, paper section 4.3).
    """

    servers: tuple[int, ...]
    share: float


@dataclass(frozen=True)
class Group:
    """The servers of one AllReduce, and the rings that carry it. Shares sum to 1."""

    servers: tuple[int, ...]
    rings: tuple[Ring, ...]


@dataclass(frozen=True)
class Route:
    """A list of servers from source to destination; `weight` is its part of the pair's bytes."""

    servers: tuple[int, ...]
    weight: float


@dataclass(frozen=True)
class Network:
    """The network half of a Plan.

    `routes` holds the routes of every ordered pair that has no link; a pair with a link and no
    route entry uses its links, evenly.
    """

    links: tuple[Link, ...]
    groups: tuple[Group, ...]
    routes: tuple[Route, ...]

    def routes_by_pair(self) -> dict[tuple[int, int], tuple[Route, ...]]:
        """All ordered pairs that can exchange bytes -> their routes, direct links included."""
        table: dict[tuple[int, int], tuple[Route, ...]] = {}
        for link in self.links:
            table[link.source, link.target] = (Route((link.source, link.target), 1.0),)
        listed: dict[tuple[int, int], list[Route]] = {}
        for route in self.routes:
            listed.setdefault((route.servers[0], route.servers[-1]), []).append(route)
        table.update({pair: tuple(routes) for pair, routes in listed.items()})
        return table
