"""Hop distances and the k shortest loop-free paths (paper section 4.2, step 4, line 20).

Only paths of the least number of hops are taken: a longer one loads more links, which costs more
than it spreads. Of these, the k with the least load on their links are kept.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch_topoopt.plan import Pair


def neighbours(servers: int, adjacent: Collection[Pair]) -> list[list[int]]:
    """For every server, the servers that its links reach, ascending."""
    table: list[list[int]] = [[] for _ in range(servers)]
    for source, target in sorted(set(adjacent)):
        table[source].append(target)
    return table


def hop_distances(table: Sequence[Sequence[int]], source: int) -> list[int]:
    """Least hops from `source` to every server (breadth-first); -1 where there is no path."""
    distance = [-1] * len(table)
    distance[source] = 0
    frontier = [source]
    hops = 0
    while frontier:
        hops += 1
        reached = []
        for server in frontier:
            for target in table[server]:
                if distance[target] < 0:
                    distance[target] = hops
                    reached.append(target)
        frontier = reached
    return distance


def least_loaded_paths(
    incoming: Sequence[Sequence[int]],
    distance: Sequence[int],
    target: int,
    count: int,
    load: Mapping[Pair, float],
) -> list[tuple[int, ...]]:
    """Up to `count` different shortest paths to `target`, least loaded first, ties to lower ids.

    `incoming[s]` lists the servers with a link to s; `distance` comes from `hop_distances` and so
    fixes the source; `load[a, b]` is the cost of using the link from a to b (bytes, or any figure).
    Exact: dynamic programming over the graph of shortest paths, keeping `count` paths per server.

    Raises ValueError if `target` cannot be reached.
    """
    if distance[target] < 0:
        raise ValueError(f"target: server {target} cannot be reached")
    if count == 1:
        return [_least_loaded_path(incoming, distance, target, load)]
    best: dict[int, list[tuple[float, tuple[int, ...]]]] = {}
    layers = _shortest_path_layers(incoming, distance, target)
    for server in layers[0]:
        best[server] = [(0.0, (server,))]
    for layer in layers[1:]:
        for server in layer:
            paths = [
                (cost + load[before, server], (*path, server))
                for before in incoming[server]
                if distance[before] == distance[server] - 1
                for cost, path in best[before]
            ]
            best[server] = heapq.nsmallest(count, paths) if len(paths) > count else sorted(paths)
    return [path for _, path in best[target]]


def _shortest_path_layers(
    incoming: Sequence[Sequence[int]], distance: Sequence[int], target: int
) -> list[list[int]]:
    """The servers on shortest paths to `target`, by their distance from the source."""
    layers = [[target]]
    for hops in range(distance[target] - 1, -1, -1):
        layer = {s for server in layers[-1] for s in incoming[server] if distance[s] == hops}
        layers.append(sorted(layer))
    layers.reverse()
    return layers


def _least_loaded_path(
    incoming: Sequence[Sequence[int]],
    distance: Sequence[int],
    target: int,
    load: Mapping[Pair, float],
) -> tuple[int, ...]:
    """The one least loaded shortest path: as above with one path per server, without copying it."""
    layers = _shortest_path_layers(incoming, distance, target)
    cost = {layers[0][0]: 0.0}
    previous: dict[int, int] = {}
    for hops, layer in enumerate(layers[1:]):
        for server in layer:
            cost[server], previous[server] = min(
                (cost[before] + load[before, server], before)
                for before in incoming[server]
                if distance[before] == hops
            )
    path = [target]
    while path[-1] in previous:
        path.append(previous[path[-1]])
    return tuple(reversed(path))
