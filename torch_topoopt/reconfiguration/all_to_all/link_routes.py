"""Routes on one topology of any shape that balance the load of links.

A server's routes form a tree. Trees are built in turn, by shortest paths; a link weighs more, the
more chunks of other servers it carries. Every pass rebuilds each tree. Link loads, not hops,
determine the time of an all-to-all, so a detour around a busy link is worth a hop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PASSES = 12
_POWERS = (2.0, 16.0)  # of load over mean load, in a link's weight: at the first and the last pass


@dataclass(frozen=True, eq=False)
class LinkRoutes:
    """Routes between all pairs of servers, or some. `before[s, t]` is the server before t on the
    route from s, -1 where there is none; `hops[s, t]` its length, 0 where there is none."""

    links: NDArray[np.int32]
    before: NDArray[np.int32]
    hops: NDArray[np.int32]

    def paths(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(sources, targets, links of the route): column h is the link with h more hops after it.
        The number of a link is server x k + port; -1 beyond the route."""
        n, degree = self.links.shape
        port_to = np.full((n, n), -1, dtype=np.int64)
        for port in reversed(range(degree)):
            port_to[np.arange(n), self.links[:, port]] = port
        sources, targets = np.nonzero(self.hops)
        taken = np.full((len(sources), int(self.hops.max(initial=0))), -1, dtype=np.int64)
        at = targets.copy()
        for h in range(taken.shape[1]):
            there = np.flatnonzero(at != sources)
            previous = self.before[sources[there], at[there]]
            taken[there, h] = previous * degree + port_to[previous, at[there]]
            at[there] = previous
        return sources, targets, taken


def balanced_routes(
    links: NDArray[np.int32], *, passes: int = _PASSES, partial: bool = False
) -> LinkRoutes:
    """Routes between all pairs, from the pass with the least load on the busiest link.

    With `passes` = 1 routes are shortest. Raises ValueError if a server does not reach another,
    unless they may be `partial`.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    n = len(links)
    joined = np.zeros((n, n), dtype=bool)
    joined[np.arange(n)[:, None], links] = True
    np.fill_diagonal(joined, False)
    tails, heads = np.nonzero(joined)
    number = np.full((n, n), -1, dtype=np.int64)
    number[tails, heads] = np.arange(len(tails))
    graph = csr_matrix((np.ones(len(tails)), (tails, heads)), shape=(n, n))
    load = np.zeros(len(tails))
    before = np.full((n, n), -1, dtype=np.int32)
    carried = np.zeros((n, n))  # per source: chunks on the link into each server
    best = (np.inf, np.inf, before)
    for now in range(passes):
        power = _POWERS[0] + (_POWERS[1] - _POWERS[0]) * now / max(passes - 1, 1)
        bend = 0.5 if passes > 1 else 1e-6
        for source in range(n):
            others = np.flatnonzero(before[source] >= 0)
            if now:
                load[number[before[source, others], others]] -= carried[source, others]
            graph.data[:] = 1 + bend * (load / max(load.mean(), 1.0)) ** power
            length, previous = dijkstra(graph, indices=source, return_predecessors=True)
            if not partial and np.any(np.isinf(length)):
                raise ValueError(
                    f"links: server {source} does not reach {int(np.isinf(length).argmax())}"
                )
            before[source] = np.maximum(previous, -1)
            others = np.flatnonzero(before[source] >= 0)
            carried[source] = _chunks_below(length, before[source])
            load[number[before[source, others], others]] += carried[source, others]
        best = min(best, (load.max(), load.sum(), before.copy()), key=lambda found: found[:2])
    return LinkRoutes(links, best[2], _hops(best[2]))


def _chunks_below(length: NDArray[np.float64], before: NDArray[np.int32]) -> NDArray[np.float64]:
    """Per server the chunks for it and for those behind it in the tree."""
    chunks = [1] * len(length)
    previous = before.tolist()
    for server in np.argsort(-length, kind="stable").tolist():
        if previous[server] >= 0:
            chunks[previous[server]] += chunks[server]
    return np.array(chunks, dtype=np.float64)


def _hops(before: NDArray[np.int32]) -> NDArray[np.int32]:
    n = len(before)
    hops = np.zeros((n, n), dtype=np.int32)
    source = np.arange(n)[:, None]
    at = np.where(before >= 0, np.arange(n)[None, :], source)
    while np.any(moving := at != source):
        hops += moving
        at = np.where(moving, before[source, at], at)
    return hops
