"""Detects whether given cables are a two-dimensional torus, and places the servers on it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch_topoopt.topology.finder.torus_cycles import disjoint_cycles, has_disjoint_cycles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.plan import Pair

Grid = tuple[tuple[int, ...], ...]
_STEPS_PER_SERVER = 200  # that a search may take; a torus with its numbers mixed up takes a few


def torus_of(count: int, cables: Iterable[Pair]) -> Grid:
    """The rows of servers 0..count-1 where `cables` are those of a torus, no more and no fewer.

    A dimension of two has two cables between its servers. Server 0 is the first of the first row.
    Of several, the squarest with no more rows than columns; () if there is none.
    """
    wires = Counter((min(pair), max(pair)) for pair in cables)
    if sum(wires.values()) != 2 * count:
        return ()
    near: list[set[int]] = [set() for _ in range(count)]
    ends = Counter[int]()
    for (a, b), number in wires.items():
        near[a].add(b)
        near[b].add(a)
        ends.update({a: number, b: number})
    if any(ends[server] != 4 for server in range(count)):
        return ()
    for rows in range(int(count**0.5), 1, -1):
        if count % rows == 0 and (grid := _placed(rows, count // rows, near, wires)):
            return grid
    return ()


def torus_cycles(grid: Grid) -> list[tuple[int, ...]]:
    """Two cycles over all servers that share no cable; empty if there are none."""
    rows, columns = len(grid), len(grid[0])
    if not has_disjoint_cycles(rows, columns):
        return []
    order = [server for row in grid for server in row]
    return [tuple(order[i] for i in cycle) for cycle in disjoint_cycles(rows, columns)]


def _placed(rows: int, columns: int, near: Sequence[set[int]], wires: Counter[Pair]) -> Grid:
    """A search with backtracking along the diagonals: all but the first row and column are next to
    two servers that have their places, which leaves hardly a choice."""
    places = sorted(
        ((i, j) for i in range(rows) for j in range(columns)), key=lambda place: (sum(place), place)
    )
    at: dict[tuple[int, int], int] = {}
    used: set[int] = set()
    choices: list[list[int]] = [[0]]
    for _ in range(_STEPS_PER_SERVER * len(places)):
        if not choices:
            return ()
        place = places[len(choices) - 1]
        used.discard(at.pop(place, -1))
        if not choices[-1]:
            choices.pop()
            continue
        at[place] = choices[-1].pop()
        used.add(at[place])
        if len(at) < len(places):
            choices.append(_candidates(places[len(at)], rows, columns, at, near, used))
            continue
        grid = tuple(tuple(at[i, j] for j in range(columns)) for i in range(rows))
        if _wires_of(grid) == wires:
            return grid
    return ()


def _candidates(
    place: tuple[int, int],
    rows: int,
    columns: int,
    at: dict[tuple[int, int], int],
    near: Sequence[set[int]],
    used: set[int],
) -> list[int]:
    i, j = place
    beside = ((i, j - 1), (i - 1, j), (i, (j + 1) % columns), ((i + 1) % rows, j))
    placed = [near[at[other]] for other in beside if other in at and other != place]
    return sorted(set.intersection(*placed) - used, reverse=True)


def _wires_of(grid: Grid) -> Counter[Pair]:
    found = Counter[tuple[int, int]]()
    for i, row in enumerate(grid):
        for j, server in enumerate(row):
            for other in (row[(j + 1) % len(row)], grid[(i + 1) % len(grid)][j]):
                found[min(server, other), max(server, other)] += 1
    return found
