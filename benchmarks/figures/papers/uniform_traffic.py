"""Global bandwidth at flow level: every server sends as much to every other, over shortest paths.

What an edge carries is added up target by target, in one search each (C++), and, where orbits say
which servers are alike, for one target of each orbit. `even` splits at every node in proportion to
the rates of the edges that lead on, as `Routes` does; `best` is what any adaptive routing over the
same paths can reach at most: the maximum concurrent flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from figures.papers.symmetry import orbits
from torch_topoopt import _core
from torch_topoopt.architectures.routing import Routes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from torch_topoopt.architectures.topology import Topology

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


_STEP = 0.25  # how fast prices grow, in loads of the busiest edge of the even split


@dataclass(frozen=True)
class EdgeLoads:
    """Bytes on each edge (`Routes.index`) where every server sends one byte to every other.

    `seconds` is the longest that an edge takes for them; `bound_s` what no split over shortest
    paths is faster than (0 where it was not asked for); `hops` the most on any path.
    """

    load: Floats
    seconds: float
    bound_s: float
    hops: int


class UniformTraffic:
    """The all-to-all of all servers of a Topology."""

    def __init__(self, topology: Topology, permutations: Iterable[Ints] = ()) -> None:
        """`permutations` of the nodes under which the network looks the same (`symmetry`)."""
        self.routes = Routes(topology)
        ends = np.array(list(self.routes.index), dtype=np.int32).reshape(-1, 2)
        self.paths = _core.ShortestPathLoads(
            topology.nodes, ends[:, 0], ends[:, 1], self.routes.bytes_per_s
        )
        self.orbits = orbits(self.routes, permutations)
        attached = all(r != server for server, r in enumerate(self.routes.router))
        self._router = self.routes.router if attached else list(range(topology.servers))
        router = np.array(self._router, dtype=np.int64)
        self._sent = np.bincount(router, minlength=topology.nodes).astype(float)
        # one target of each orbit, with the servers of all of them behind it
        members, first = np.unique(self.orbits.of_node[router], return_index=True)
        self._targets = router[first]
        self._weights = np.bincount(self.orbits.of_node[router])[members].astype(float)
        self._size = np.bincount(self.orbits.of_edge, minlength=self.orbits.edges)
        ends_of_servers = [
            (self.routes.index[server, r], self.routes.index[r, server])
            for server, r in enumerate(self._router)
            if r != server
        ]
        self._server_edges = np.array(ends_of_servers, dtype=np.int64).reshape(-1)

    @property
    def targets(self) -> int:
        """How many are searched from."""
        return len(self._targets)

    @cached_property
    def injection_bytes_per_s(self) -> float:
        """What the best connected server can send at once."""
        source = np.array([a for a, _ in self.routes.index], dtype=np.int64)
        sent = np.bincount(source, weights=self.routes.bytes_per_s)
        return float(sent[: self.routes.topology.servers].max())

    def share(self, seconds: float) -> float:
        """Of its injection bandwidth that each server sends, if that all-to-all takes `seconds`."""
        sent = self.routes.topology.servers - 1
        return sent / seconds / self.injection_bytes_per_s

    def even(self) -> EdgeLoads:
        """Split evenly (by rates)."""
        return self._even

    @cached_property
    def _even(self) -> EdgeLoads:
        load, _, hops = self._loads(np.zeros(0))
        return self._result(load, 0.0, hops)

    def best(self, gap: float = 1e-3, rounds: int = 100) -> EdgeLoads:
        """Split so that the busiest edge carries least, as far as `rounds` columns come; or, if
        that is met before, at most `gap` above the bound.

        A game of edges against traffic: edges set prices, traffic answers with all that is sent on
        paths of the least length, a column; prices grow exponentially with what an edge has carried
        (Hedge; Young 1995). The even split and the columns are then mixed by a linear program. The
        loads of an orbit are alike in some best split (the mean over the symmetries of any), so
        that prices and columns have one entry for each orbit.
        """
        hops = self._even.hops
        rate = self.routes.bytes_per_s[np.unique(self.orbits.of_edge, return_index=True)[1]]
        columns = [self._by_orbit(self._even.load) / rate]
        seconds = scale = float(columns[0].max())
        carried = columns[0] / scale
        bound = 0.0
        mean = np.zeros(len(rate))
        for i in range(rounds):
            prices = np.exp(_STEP * (carried - carried.max()))
            prices /= (prices * self._size).sum()
            mean += prices if 3 * i >= rounds else 0.0
            load, length, _ = self._loads((prices / rate)[self.orbits.of_edge])
            bound = max(bound, length)
            columns.append(self._by_orbit(load) / rate)
            seconds = min(seconds, float(columns[-1].max()))
            if seconds <= bound * (1 + gap):
                break
            carried = carried + columns[-1] / scale
        else:
            mean /= (mean * self._size).sum()
            bound = max(bound, self._loads((mean / rate)[self.orbits.of_edge])[1])
        mixed = np.einsum("i,ij->j", _mixture(columns), np.array(columns)) * rate
        return self._result(mixed[self.orbits.of_edge], bound, hops)

    def _loads(self, lengths: Floats) -> tuple[Floats, float, int]:
        """Of edges, alike in each orbit; the length of all that is sent; hops between servers."""
        load, length, hops = self.paths.loads(
            self._targets.astype(np.int32), self._weights, self._sent, lengths
        )
        load = self._by_orbit(load)[self.orbits.of_edge]
        others = self.routes.topology.servers - 1
        load[self._server_edges] += others
        if len(lengths):
            length += float(lengths[self._server_edges].sum()) * others
        return load, length, hops + 2 * (len(self._server_edges) > 0)

    def _by_orbit(self, load: Floats) -> Floats:
        """The mean load of the edges of every orbit."""
        total = np.bincount(self.orbits.of_edge, weights=load, minlength=self.orbits.edges)
        return np.asarray(total / self._size, dtype=np.float64)

    def _result(self, load: Floats, bound: float, hops: int) -> EdgeLoads:
        return EdgeLoads(load, float((load / self.routes.bytes_per_s).max()), bound, hops)


def _mixture(columns: list[Floats]) -> Floats:
    """Weights of the columns that sum to 1 and make the largest entry of their sum least."""
    from scipy.optimize import linprog

    matrix = np.array(columns).T
    entries, count = matrix.shape
    solved = linprog(
        np.concatenate([np.zeros(count), [1.0]]),
        A_ub=np.hstack([matrix / matrix.max(), -np.ones((entries, 1))]),
        b_ub=np.zeros(entries),
        A_eq=np.concatenate([np.ones(count), [0.0]])[None, :],
        b_eq=[1.0],
        method="highs",
    )
    weights = np.maximum(solved.x[:count], 0.0)
    return np.asarray(weights / weights.sum(), dtype=np.float64)
