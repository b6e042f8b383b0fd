"""The network half of a plan: links by port, rings of groups, routes of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch_topoopt.plan.routes import Pair, PairRoutes, Route, RouteTable, routes_by_ends

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Place = TypeVar("_Place")


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

    JSON_FIELDS: ClassVar = ("stride", "share")  # of results; documents have the fields

    servers: tuple[int, ...]
    share: float

    @property
    def hops(self) -> tuple[Pair, ...]:
        return hops_around(self.servers)

    @property
    def stride(self) -> int | None:
        return stride_of(self.servers)


def hops_around(order: Sequence[_Place]) -> tuple[tuple[_Place, _Place], ...]:
    """(from, to) of every hop of a ring along `order`, the closing one included."""
    return tuple(zip(order, (*order[1:], *order[:1]), strict=True))


def stride_of(order: Sequence[int]) -> int | None:
    """How far on among its members, by their numbers, each server of a ring sends; None where they
    differ, and for a single server."""
    place = {server: i for i, server in enumerate(sorted(order))}
    steps = {(place[b] - place[a]) % len(order) for a, b in hops_around(order)}
    return steps.pop() if len(steps) == 1 and len(order) > 1 else None


def rings_of(orders: Sequence[tuple[int, ...]], *, both_ways: bool) -> tuple[Ring, ...]:
    """Rings of equal shares along `orders`, and against them where that differs."""
    if not orders or len(orders[0]) < 2:
        return ()
    if both_ways and len(orders[0]) > 2:
        orders = [o for order in orders for o in (order, (order[0], *order[:0:-1]))]
    return tuple(Ring(order, 1 / len(orders)) for order in orders)


@dataclass(frozen=True)
class Group:
    """The servers of one AllReduce, and the rings that carry it. Shares sum to 1.

    `grid` is there where the servers are wired as a two-dimensional torus: the rows, of which every
    server is next to two others in its row and to two in its column. An AllReduce may then go along
    rows and columns instead of rings (HammingMesh paper, section V-A2).
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"grid"})
    JSON_FIELDS: ClassVar = ("servers", "rings")  # of results; documents have the fields

    servers: tuple[int, ...]
    rings: tuple[Ring, ...]
    grid: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Network:
    """The network half of a Plan.

    `routes` holds the routes of every ordered pair that has no link, as a list or as the rules of a
    RouteTable, which is a sequence of the same routes; a pair with a link and no route entry uses
    its links, evenly.
    """

    links: tuple[Link, ...]
    groups: tuple[Group, ...]
    routes: tuple[Route, ...] | RouteTable

    def routes_by_pair(self) -> Mapping[Pair, tuple[Route, ...]]:
        """All ordered pairs that can exchange bytes -> their routes, direct links included.

        Of a RouteTable, a pair's routes are made when they are asked for.
        """
        linked = [(link.source, link.target) for link in self.links]
        if isinstance(self.routes, RouteTable):
            return PairRoutes(linked, self.routes)
        table: dict[Pair, tuple[Route, ...]]
        table = {pair: (Route(pair, 1.0),) for pair in linked}
        table.update(routes_by_ends(self.routes))
        return table

    def routes_through(self, server: int) -> dict[Pair, tuple[Route, ...]]:
        """The routes of every pair with an entry in `routes` of which one passes `server`."""
        if isinstance(self.routes, RouteTable):
            return self.routes.through(server)
        return {
            pair: routes
            for pair, routes in routes_by_ends(self.routes).items()
            if any(server in route.servers for route in routes)
        }
