"""The k shortest loop-free paths, longer than shortest ones included (Yen's algorithm).

J. Y. Yen, Finding the k shortest loopless paths in a network, Management Science 17(11), 1971, with
Lawler's improvement: a path is only varied from the server on where it left the path it came from.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def k_shortest_paths(
    table: Sequence[Sequence[int]],
    incoming: Sequence[Sequence[int]],
    source: int,
    target: int,
    count: int,
) -> list[tuple[int, ...]]:
    """The first `count` loop-free paths by hops, then by the servers' numbers; fewer if there are.

    `table[s]` lists the servers that s has a link to, `incoming[s]` those with a link to s, both
    ascending. Raises ValueError if `count` is below 1, `target` is `source` or has no path.
    """
    if count < 1:
        raise ValueError(f"count: {count} is not at least 1")
    if source == target:
        raise ValueError(f"target: server {target} is the source")
    first = _first_path(table, incoming, (source,), target, ())
    if first is None:
        raise ValueError(f"target: server {target} cannot be reached from server {source}")
    found: list[tuple[int, ...]] = []
    candidates = [(len(first), first, 0)]
    while candidates and len(found) < count:
        _, path, left_at = heapq.heappop(candidates)
        found.append(path)
        for i in range(left_at, len(path) - 1):
            start = path[: i + 1]
            # Candidates that begin alike go on as one of these, for they left it further on.
            taken = {known[i + 1] for known in found if known[: i + 1] == start}
            other = _first_path(table, incoming, start, target, taken)
            if other is not None:
                heapq.heappush(candidates, (len(other), other, i))
    return found


def _first_path(
    table: Sequence[Sequence[int]],
    incoming: Sequence[Sequence[int]],
    start: tuple[int, ...],
    target: int,
    taken: Collection[int],
) -> tuple[int, ...] | None:
    """The first path that begins with `start` and does not go on to one of `taken`; None if none.

    Breadth-first search back from the target, then the lowest server that is one hop nearer.
    """
    closed = set(start)
    here = start[-1]
    ahead = [server for server in table[here] if server not in closed and server not in taken]
    if not ahead:
        return None
    hops = {target: 0}
    frontier = [target]
    while frontier and not any(server in hops for server in ahead):
        reached = []
        for server in frontier:
            for before in incoming[server]:
                if before not in hops and before not in closed:
                    hops[before] = hops[server] + 1
                    reached.append(before)
        frontier = reached
    ways = [server for server in ahead if server in hops]
    if not ways:
        return None
    path = [*start, min(ways, key=lambda server: (hops[server], server))]
    while path[-1] != target:
        nearer = hops[path[-1]] - 1
        path.append(next(s for s in table[path[-1]] if hops.get(s) == nearer and s not in closed))
    return tuple(path)
