"""The rings of groups that are rows, columns or rectangles of a grid (HammingMesh, V-A2).

A row or column is a cycle: one ring in both directions. A rectangle, even of rows and columns that
are not adjacent, is a torus (virtual sub-HxMesh, section III-E): two Hamiltonian cycles without a
common cable, in both directions, where they exist. The choice is the fastest on the given routes,
because two cycles inside a board may share a link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan.network import rings_of
from torch_topoopt.topology.finder.torus_cycles import disjoint_cycles, has_disjoint_cycles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.architectures.routing import Routes
    from torch_topoopt.architectures.topology import ServerGrid
    from torch_topoopt.plan import Ring

Rings = tuple["Ring", ...]


def natural_rings(routes: Routes, grid: ServerGrid, group: Sequence[int]) -> Rings:
    """The rings of `group`, ascending; none for fewer than three servers, or for a set that is no
    rectangle.

    Of the candidates, the one with the least time on its busiest link; ties go to the first, with
    fewer rings. Raises ValueError for servers without a path.
    """
    if len(group) < 3:
        return ()
    best: tuple[float, Rings] = (np.inf, ())
    for orders in _cycles(grid, group):
        rings = rings_of(orders, both_ways=True)
        busy_s = busiest_s(routes, rings)
        if busy_s < best[0] * (1 - 1e-9):
            best = busy_s, rings
    return best[1]


def busiest_s(routes: Routes, rings: Rings) -> float:
    """Busy seconds of the busiest link for an AllReduce of 1 byte on `rings`."""
    shares: dict[tuple[int, int], float] = {}
    for ring in rings:
        count = len(ring.servers)
        for hop in ring.hops:
            shares[hop] = shares.get(hop, 0.0) + ring.share * 2 * (count - 1) / count
    loads = routes.loads(shares)
    sizes = np.array([shares[pair] for pair in zip(loads.source, loads.target, strict=True)])
    per_use = np.repeat(sizes, np.diff(loads.begin)) * loads.load
    busy = np.bincount(loads.edge, weights=per_use, minlength=len(routes.bytes_per_s))
    return float((busy / routes.bytes_per_s).max())


def _cycles(grid: ServerGrid, group: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """The sets of cycles that the shape of `group` offers."""
    rows = sorted({server // grid.columns for server in group})
    columns = sorted({server % grid.columns for server in group})
    if len(rows) * len(columns) != len(group):
        return
    if min(len(rows), len(columns)) == 1:
        yield [tuple(sorted(group))]
        return
    places = [grid.number(row, column) for row in rows for column in columns]
    if (len(rows) * len(columns)) % 2 == 0:
        yield [_closed_walk(places, len(rows), len(columns))]
    if has_disjoint_cycles(len(rows), len(columns)):
        for turned in (False, True):
            found = disjoint_cycles(
                *((len(columns), len(rows)) if turned else (len(rows), len(columns)))
            )
            yield [
                tuple(
                    places[(i % len(rows)) * len(columns) + i // len(rows) if turned else i]
                    for i in cycle
                )
                for cycle in found
            ]


def _closed_walk(places: Sequence[int], rows: int, columns: int) -> tuple[int, ...]:
    """Goes along the first column and returns through the others, turning at their ends. Neighbours
    are adjacent on a grid without wrap-around, as within a board. One size is even."""
    if rows % 2:
        turned = [places[i % rows * columns + i // rows] for i in range(rows * columns)]
        return _closed_walk(turned, columns, rows)
    walk = []
    for row in range(rows):
        line = [places[row * columns + column] for column in range(1, columns)]
        walk += line if row % 2 == 0 else line[::-1]
    return tuple(walk + [places[row * columns] for row in reversed(range(rows))])
