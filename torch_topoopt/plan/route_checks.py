"""The rules of valid routes, listed or by a table."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.routes import Pair, Route, RouteTable
from torch_topoopt.plan.server_sets import check_servers

if TYPE_CHECKING:
    from collections.abc import Collection


def validate_routes(
    routes: tuple[Route, ...] | RouteTable,
    adjacent: Collection[Pair],
    count: int,
    *,
    without: int | None = None,
) -> None:
    """Raises DocumentError for the first rule that is broken.

    Routes use links of `adjacent`, visit no server twice, and have positive weights that sum to 1
    per pair. Every pair of 0..count-1, except of a lost server `without`, has a link or a route.
    A RouteTable is checked by its rules, not route by route.
    """
    where = "network.routes"
    if not isinstance(routes, RouteTable):
        covered = _validate_listed(where, routes, adjacent, count)
        rest = ((a, b) for a in range(count) for b in range(count) if a != b)
    else:
        if routes.servers != count:
            raise DocumentError(f"{where}.servers: {routes.servers} is not {count}")
        if routes.by_offset and routes.next_hops:
            raise DocumentError(f"{where}: by_offset and next_hops; a table has one of them")
        covered = _validate_listed(f"{where}.listed", routes.listed, adjacent, count)
        _validate_offsets(f"{where}.by_offset", routes, adjacent)
        if routes.next_hops:
            _validate_next_hops(f"{where}.next_hops", routes.next_hops, adjacent, count)
            return
        ruled = routes.offset_routes
        rest = (
            (s, (s + o) % count) for o in range(1, count) if o not in ruled for s in range(count)
        )
    for pair in rest:
        if pair not in adjacent and pair not in covered and without not in pair:
            raise DocumentError(f"{where}: no link and no route from server {pair[0]} to {pair[1]}")


def _validate_listed(
    name: str, routes: tuple[Route, ...], adjacent: Collection[Pair], count: int
) -> Collection[Pair]:
    """The pairs that have routes in the list."""
    weights: dict[Pair, float] = {}
    for i, route in enumerate(routes):
        where = f"{name}[{i}]"
        check_servers(f"{where}.servers", route.servers, count)
        if len(route.servers) < 2:
            raise DocumentError(f"{where}.servers: a route needs a source and a destination")
        for hop in itertools.pairwise(route.servers):
            if hop not in adjacent:
                raise DocumentError(f"{where}: there is no link from server {hop[0]} to {hop[1]}")
        if not route.weight > 0:
            raise DocumentError(f"{where}.weight: {route.weight} is not above 0")
        pair = (route.servers[0], route.servers[-1])
        weights[pair] = weights.get(pair, 0.0) + route.weight
    for pair, total in weights.items():
        if abs(total - 1) > 1e-9:
            raise DocumentError(
                f"{name}: weights from server {pair[0]} to {pair[1]} sum to {total}, not 1"
            )
    return weights.keys()


def _validate_offsets(name: str, table: RouteTable, adjacent: Collection[Pair]) -> None:
    count = table.servers
    by_stride: dict[int, int] = {}
    for source, target in adjacent:
        stride = (target - source) % count
        by_stride[stride] = by_stride.get(stride, 0) + 1
    for i, route in enumerate(table.by_offset):
        where = f"{name}[{i}]"
        for stride in route.strides:
            if by_stride.get(stride) != count:
                raise DocumentError(
                    f"{where}.strides: not every server s has a link to s + {stride} modulo {count}"
                )
        way = route.from_server(0, count).servers
        if len(way) < 2 or len(set(way)) < len(way):
            raise DocumentError(
                f"{where}.strides: {list(route.strides)} leads from server 0 over {list(way)}; "
                "a route has a destination and visits no server twice"
            )
        if not route.weight > 0:
            raise DocumentError(f"{where}.weight: {route.weight} is not above 0")
    for offset, routes in table.offset_routes.items():
        total = sum(route.weight for route in routes)
        if abs(total - 1) > 1e-9:
            raise DocumentError(f"{name}: weights of offset {offset} sum to {total}, not 1")


def _validate_next_hops(
    name: str, next_hops: tuple[tuple[int, ...], ...], adjacent: Collection[Pair], count: int
) -> None:
    import numpy as np  # most plans have no table and need no NumPy

    if len(next_hops) != count or any(len(row) != count for row in next_hops):
        raise DocumentError(f"{name}: not {count} rows of {count} servers")
    table = np.array(next_hops)
    if table.min() < 0 or table.max() >= count:
        raise DocumentError(f"{name}: a server is not in 0..{count - 1}")
    linked = np.eye(count, dtype=bool)
    for source, target in adjacent:
        linked[source, target] = True
    servers = np.arange(count)
    wrong = np.argwhere(~linked[servers[:, None], table])
    if not len(wrong):
        wrong = np.argwhere((table == servers[:, None]) & ~np.eye(count, dtype=bool))
    if len(wrong):
        source, target = (int(i) for i in wrong[0])
        raise DocumentError(
            f"{name}[{source}][{target}]: there is no link from server {source} to "
            f"{next_hops[source][target]}"
        )
    here = table
    for _ in range(count):
        if (here == servers).all():
            return
        here = table[here, servers]
    source, target = (int(i) for i in np.argwhere(here != servers)[0])
    raise DocumentError(f"{name}: the route from server {source} to {target} has a loop")
