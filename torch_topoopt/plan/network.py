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
    """(from, to) of every hop of a ring along `order`, including the closing one."""
    return tuple(zip(order, (*order[1:], *order[:1]), strict=True))


def stride_of(order: Sequence[int]) -> int | None:
    """The common distance, in positions of the sorted members, of all hops of a ring; None if hops
    differ, or for a single server."""
    place = {server: i for i, server in enumerate(sorted(order))}
    steps = {(place[b] - place[a]) % len(order) for a, b in hops_around(order)}
    return steps.pop() if len(steps) == 1 and len(order) > 1 else None


def rings_of(orders: Sequence[tuple[int, ...]], *, both_ways: bool) -> tuple[Ring, ...]:
    """Rings of equal shares along `orders`, and along their reverses if those differ."""
    if not orders or len(orders[0]) < 2:
        return ()
    if both_ways and len(orders[0]) > 2:
        orders = [o for order in orders for o in (order, (order[0], *order[:0:-1]))]
    return tuple(Ring(order, 1 / len(orders)) for order in orders)


@dataclass(frozen=True)
class Group:
    """The servers of one AllReduce, and the rings that carry it. Shares sum to 1.

    `grid` has the rows of a group wired as a two-dimensional torus: every server has two
    neighbours in its row and two in its column. An AllReduce may then use rows and columns instead
    of rings (HammingMesh paper, section V-A2).
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"grid"})
    JSON_FIELDS: ClassVar = ("servers", "rings")  # of results; documents have the fields

    servers: tuple[int, ...]
    rings: tuple[Ring, ...]
    grid: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Network:
    """The network half of a Plan.

    `routes` has the routes of every ordered pair without a link, as a list or as a RouteTable. A
    pair with links and no route entry uses its links evenly.
    """

    links: tuple[Link, ...]
    groups: tuple[Group, ...]
    routes: tuple[Route, ...] | RouteTable

    def routes_by_pair(self) -> Mapping[Pair, tuple[Route, ...]]:
        """All ordered pairs that can exchange bytes -> their routes, including direct links.

        A RouteTable computes a pair's routes on access.
        """
        linked = [(link.source, link.target) for link in self.links]
        if isinstance(self.routes, RouteTable):
            return PairRoutes(linked, self.routes)
        table: dict[Pair, tuple[Route, ...]]
        table = {pair: (Route(pair, 1.0),) for pair in linked}
        table.update(routes_by_ends(self.routes))
        return table

    def heaviest_routes(self) -> dict[Pair, tuple[int, ...]]:
        """(source, target) -> the servers that the route with the most bytes visits, both ends
        included: the only one of a host's kernel."""
        return {
            pair: max(routes, key=lambda route: route.weight).servers
            for pair, routes in self.routes_by_pair().items()
        }

    def routes_through(self, server: int) -> dict[Pair, tuple[Route, ...]]:
        """All routes of each pair in `routes` that has a route through `server`."""
        if isinstance(self.routes, RouteTable):
            return self.routes.through(server)
        return {
            pair: routes
            for pair, routes in routes_by_ends(self.routes).items()
            if any(server in route.servers for route in routes)
        }
