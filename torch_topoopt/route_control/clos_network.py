"""Switched networks for routing flows: links with capacities, and the paths of every pair.

A Clos network of any number of tiers: leaf-spine, fat-trees, or any graph of switches. Flows go
between the switches of the lowest tier (ToRs), over one of the shortest paths. Dead links are
omitted; the rest may be oversubscribed, and capacities may differ.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import networkx as nx

from torch_topoopt import _core

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Link = tuple[int, int]


@dataclass(frozen=True)
class ClosNetwork:
    """Switches 0 to `tors` - 1 have servers; `capacity` is that of each directed link (source,
    target), in flows of demand 1 or in the unit of the demands."""

    tors: int
    capacity: Mapping[Link, float]
    spines: int = 0  # of a leaf-spine network: switches tors .. tors + spines - 1; else 0
    _paths: dict[Link, tuple[tuple[int, ...], ...]] = field(default_factory=dict, repr=False)

    def paths(self, source: int, target: int) -> tuple[tuple[int, ...], ...]:
        """All shortest paths as switches, sorted; none for a disconnected pair."""
        pair = source, target
        if pair not in self._paths and self.spines and source != target:
            over = self._neighbours[source] & self._neighbours[target]
            if over:
                self._paths[pair] = tuple((source, spine, target) for spine in sorted(over))
        if pair not in self._paths:
            try:
                found = nx.all_shortest_paths(self._graph, source, target)
                self._paths[pair] = tuple(sorted(map(tuple, found)))
            except nx.NetworkXNoPath:
                self._paths[pair] = ()
        return self._paths[pair]

    @cached_property
    def links(self) -> tuple[Link, ...]:
        return tuple(sorted(self.capacity))

    @cached_property
    def link_numbers(self) -> dict[Link, int]:
        return {link: number for number, link in enumerate(self.links)}

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all links have the same capacity."""
        return len(set(self.capacity.values())) <= 1

    @cached_property
    def _neighbours(self) -> dict[int, set[int]]:
        """Per switch its neighbours with links in both directions."""
        found: dict[int, set[int]] = {switch: set() for switch in range(self.tors)}
        for a, b in self.links:
            if (b, a) in self.capacity:
                found.setdefault(a, set()).add(b)
        return found

    @cached_property
    def common_spines(self) -> int | None:
        """The number of live spines of a leaf-spine network, if every ToR reaches each of them."""
        if not self.spines:
            return None
        live = {end for start, end in self.capacity if start < self.tors}
        return len(live) if len(live) * self.tors * 2 == len(self.capacity) else None

    @cached_property
    def rates_at(self) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Per switch the capacities of outgoing links, and of incoming ones."""
        found: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
        for link, rate in self.capacity.items():
            for end in (0, 1):
                found[end].setdefault(link[end], []).append(rate)
        return found

    def widest(self, source: int, target: int) -> float:
        """The capacity of the widest path, that of its narrowest link."""
        if self.is_uniform:
            return next(iter(self.capacity.values()))
        return max(
            min(self.capacity[hop] for hop in itertools.pairwise(path))
            for path in self.paths(source, target)
        )

    @cached_property
    def _graph(self) -> nx.DiGraph[int]:
        graph: nx.DiGraph[int] = nx.DiGraph(list(self.links))
        graph.add_nodes_from(range(self.tors))
        return graph

    def table(self, pairs: Sequence[Link]) -> _core.SwitchedPaths:
        """The paths of `pairs`, in their order, over the links by their numbers."""
        numbers = self.link_numbers
        return _core.SwitchedPaths(
            [self.capacity[link] for link in self.links],
            [
                [[numbers[hop] for hop in itertools.pairwise(path)] for path in self.paths(*pair)]
                for pair in pairs
            ],
        )


def leaf_spine(
    tors: int,
    spines: int,
    *,
    capacity: float = 1.0,
    dead_links: Collection[Link] = (),
    capacities: Mapping[Link, float] | None = None,
) -> ClosNetwork:
    """Every ToR is joined to every spine, both ways; `dead_links` are [ToR, spine], both counted
    from 0, and dead in both directions. `capacities` are those of [ToR, spine] that differ.

    Raises ValueError for numbers out of range.
    """
    for name, count in (("tors", tors), ("spines", spines)):
        if count < 1:
            raise ValueError(f"{name}: {count} is not at least 1")
    rates = dict(capacities or {})
    for tor, spine in (*dead_links, *rates):
        if not (0 <= tor < tors and 0 <= spine < spines):
            raise ValueError(
                f"dead-links: [{tor}, {spine}] is not one of {tors} ToRs and {spines} spines"
            )
    dead = set(dead_links)
    both: dict[Link, float] = {}
    for tor, spine in itertools.product(range(tors), range(spines)):
        rate = rates.get((tor, spine), capacity)
        if not 0 < rate < math.inf:
            raise ValueError(f"capacity: {rate} is not a number above 0")
        if (tor, spine) not in dead:
            both[tor, tors + spine] = both[tors + spine, tor] = rate
    network = ClosNetwork(tors, both, spines)
    alive = [[s for s in range(spines) if (t, s) not in dead] for t in range(tors)]
    for source, target in itertools.permutations(range(tors), 2):
        there = set(alive[target])
        network._paths[source, target] = tuple(
            (source, tors + spine, target) for spine in alive[source] if spine in there
        )
    return network
