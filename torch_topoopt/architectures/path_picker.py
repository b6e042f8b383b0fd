"""One path for one flow, where a Topology has several for its pair."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from torch_topoopt.architectures.routing import Routes
    from torch_topoopt.plan import Pair


class PathPicker:
    """One path for each requested flow, at random where a pair has several."""

    def __init__(self, routes: Routes, rng: random.Random) -> None:
        self._routes = routes
        self._rng = rng
        self._links: dict[Pair, list[int]] = {}
        for i, link in enumerate(routes.topology.links):
            self._links.setdefault((link.source, link.target), []).append(i)
        self._next: dict[int, list[int]] = {}
        for a, b in routes.index:
            self._next.setdefault(a, []).append(b)
        self._listed: dict[Pair, list[tuple[tuple[int, ...], float]]] = {}
        for path in routes.topology.paths:
            ends = (path.nodes[0], path.nodes[-1])
            self._listed.setdefault(ends, []).append((path.nodes, path.weight))
        self._distance: dict[int, list[int]] = {}

    def links(self, source: int, target: int, *, direct: bool = False) -> list[int]:
        """Indices of the links of a path between two servers; ValueError if there is none.

        A `direct` path is a link between them."""
        nodes = (source, target) if direct else self.nodes(source, target)
        return [self._rng.choice(self._links[hop]) for hop in pairwise(nodes)]

    def nodes(self, source: int, target: int) -> list[int]:
        """The nodes of a path between two servers; ValueError if there is none."""
        a, b = self._routes.router[source], self._routes.router[target]
        before = [source] if a != source else []
        behind = [target] if b != target else []
        return [*before, *self._between(a, b), *behind]

    def _between(self, a: int, b: int) -> list[int]:
        if a == b:
            return [a]
        if listed := self._listed.get((a, b)):
            weights = [weight for _, weight in listed]
            return list(self._rng.choices(listed, weights)[0][0])
        if self._listed and (a, b) in self._links:
            return [a, b]
        if b not in self._distance:
            self._distance[b] = self._routes.distances_to(b).tolist()
        distance = self._distance[b]
        if distance[a] < 0:
            raise ValueError(f"paths: no path from node {a} to node {b}")
        nodes = [a]
        while nodes[-1] != b:
            here = nodes[-1]
            nearer = [n for n in self._next[here] if distance[n] == distance[here] - 1]
            rates = [self._routes.bytes_per_s[self._routes.index[here, n]] for n in nearer]
            nodes.append(self._rng.choices(nearer, rates)[0])
        return nodes
