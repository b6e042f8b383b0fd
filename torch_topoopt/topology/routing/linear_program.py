"""Multi-commodity flow of the least maximum utilisation, exactly: two linear programs (HiGHS).

The variables are the bytes of every source on every link, whichever target they are for: sources
times links of them, where paths would be far more. Where moving all servers by `period` changes
neither links nor traffic, some optimum is moved into itself, too (the mean over all moves is as
good), so only the sources 0..period-1 have variables: a circulant network with uniform traffic has
those of one source.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_topoopt.plan import Pair


_ZERO = 1e-9  # of the mean bytes of a pair: a flow below is none
_TOLERANCE = 1e-5  # of the mean bytes of a pair: the program may not have seen less (HiGHS: 1e-7)
_SLACK = 1e-9  # by which the second program may exceed the maximum that the first one found
_NO_USE = 1e-6  # a reduced cost above: the variable is 0 in every optimum


@dataclass(frozen=True)
class OptimalFlow:
    """`ways[s, t]` are the paths from s < period to t and their bytes; `utilisation` is the least
    maximum over links of bytes / capacity."""

    ways: dict[Pair, list[tuple[tuple[int, ...], float]]]
    utilisation: float


def period_of(capacity: NDArray[np.float64], traffic: NDArray[np.float64]) -> int:
    """The least divisor r of n such that moving every server by r modulo n changes neither matrix.

    n itself where there is no symmetry.
    """
    servers = len(traffic)
    for period in range(1, servers):
        if servers % period == 0 and all(
            np.array_equal(np.roll(matrix, (period, period), (0, 1)), matrix)
            for matrix in (capacity, traffic)
        ):
            return period
    return servers


def program_size(capacity: NDArray[np.float64], traffic: NDArray[np.float64]) -> int:
    """The variables that `least_utilisation_flow` would have."""
    sources = traffic[: period_of(capacity, traffic)].any(axis=1)
    return int(np.count_nonzero(sources)) * int(np.count_nonzero(capacity))


def least_utilisation_flow(
    capacity: NDArray[np.float64], traffic: NDArray[np.float64], period: int
) -> OptimalFlow:
    """Paths for `traffic` [source][target] over links of `capacity` [source][target] (0: no link).

    First the utilisation is minimised, then, at that utilisation, the bytes on all links together,
    so that nothing takes a detour for nothing. `period` is that of both matrices, `period_of`.

    Raises ValueError if a pair with traffic has no path, RuntimeError if HiGHS finds no optimum.
    """
    program = _Program(capacity, traffic, period)
    flows, utilisation = program.solve()
    ways: dict[Pair, list[tuple[tuple[int, ...], float]]] = {}
    for source, flow in zip(program.sources, flows, strict=True):
        split = _Decomposition(source, program.edges, flow, traffic[source] / program.unit)
        for target, paths in split.paths().items():
            ways[source, target] = [(path, size * program.unit) for path, size in paths]
    return OptimalFlow(ways, utilisation * program.unit)


class _Program:
    """The two programs; bytes are counted in `unit`, the mean of the pairs that send any."""

    def __init__(
        self, capacity: NDArray[np.float64], traffic: NDArray[np.float64], period: int
    ) -> None:
        self.servers = len(traffic)
        self.edges: list[Pair] = [(int(a), int(b)) for a, b in np.argwhere(capacity > 0)]
        self.sources: list[int] = np.flatnonzero(traffic[:period].any(axis=1)).tolist()
        self.unit = float(traffic[traffic > 0].mean())
        self._capacity = capacity
        self._traffic = traffic / self.unit
        self._period = period

    def solve(self) -> tuple[NDArray[np.float64], float]:
        """Units [source][edge] and the least maximum of units / capacity."""
        from scipy.sparse import csr_array, hstack

        columns = len(self.sources) * len(self.edges)
        balance, wanted = self._balance()
        loads, capacity = self._loads()
        first = _linear_program(
            np.append(np.zeros(columns), 1.0),
            A_ub=hstack([loads, csr_array(-capacity[:, None])]).tocsr(),
            b_ub=np.zeros(len(capacity)),
            A_eq=hstack([balance, csr_array((len(wanted), 1))]).tocsr(),
            b_eq=wanted,
        )
        utilisation = float(first.x[-1])
        most = np.where(first.lower.marginals[:-1] > _NO_USE, 0.0, np.inf)
        second = _linear_program(
            np.ones(columns),
            A_ub=loads,
            b_ub=capacity * utilisation * (1 + _SLACK),
            A_eq=balance,
            b_eq=wanted,
            bounds=np.column_stack([np.zeros(columns), most]),
        )
        return second.x.reshape(len(self.sources), len(self.edges)), utilisation

    def _balance(self) -> tuple[Any, NDArray[np.float64]]:
        """Inflow minus outflow of a server is its demand; not for the source."""
        from scipy.sparse import block_diag, csr_array

        count = len(self.edges)
        tails = [a for a, _ in self.edges]
        heads = [b for _, b in self.edges]
        signs = np.repeat([1.0, -1.0], count)
        at = (heads + tails, [*range(count), *range(count)])
        incidence = csr_array((signs, at), shape=(self.servers, count))
        others = [np.delete(np.arange(self.servers), source) for source in self.sources]
        blocks = block_diag([incidence[rows] for rows in others]).tocsr()
        wanted = [self._traffic[s, rows] for s, rows in zip(self.sources, others, strict=True)]
        return blocks, np.concatenate(wanted)

    def _loads(self) -> tuple[Any, NDArray[np.float64]]:
        """One row for all links that moves by the period turn into each other; their capacity."""
        from scipy.sparse import csr_array

        rows: dict[Pair, int] = {}
        row_of = []
        capacity = []
        for a, b in self.edges:
            moved = a - a % self._period
            first = (a - moved, (b - moved) % self.servers)
            if first not in rows:
                rows[first] = len(rows)
                capacity.append(self._capacity[first])
            row_of.append(rows[first])
        columns = len(self.sources) * len(self.edges)
        at = (row_of * len(self.sources), range(columns))
        loads = csr_array((np.ones(columns), at), shape=(len(rows), columns))
        return loads, np.array(capacity)


def _linear_program(cost: NDArray[np.float64], **program: Any) -> Any:
    """The optimum by the interior-point method with crossover to a vertex, as few paths need it."""
    from scipy.optimize import linprog

    found = linprog(cost, method="highs-ipm", **program)
    if found.status == 2:
        raise ValueError("traffic: a pair with bytes has no path")
    if found.status != 0:
        raise RuntimeError(f"HiGHS found no optimum: {found.message}")
    return found


class _Decomposition:
    """A flow from one source to many targets as paths, by always taking the widest way back."""

    def __init__(
        self,
        source: int,
        edges: Sequence[Pair],
        flow: NDArray[np.float64],
        wanted: NDArray[np.float64],
    ) -> None:
        self._source = source
        self._edges = edges
        self._wanted = wanted
        self._into: list[dict[int, float]] = [{} for _ in wanted]
        for i in np.flatnonzero(flow > _ZERO).tolist():
            tail, head = edges[i]
            self._into[head][tail] = float(flow[i])

    def paths(self) -> dict[int, list[tuple[tuple[int, ...], float]]]:
        """The paths to every target that is sent something; sizes sum to what it is sent."""
        table = {}
        for target in np.flatnonzero(self._wanted).tolist():
            wanted = float(self._wanted[target])
            found: dict[tuple[int, ...], float] = {}
            missing = wanted
            while missing > _ZERO * max(1.0, wanted):
                path = self._widest(target)
                if not path:
                    break
                size = min(missing, self._take(path, missing))
                found[path] = found.get(path, 0.0) + size
                missing -= size
            if not found:
                if wanted > _TOLERANCE:
                    raise RuntimeError(f"HiGHS: no flow from server {self._source} to {target}")
                found[self._shortest(target)] = wanted
            # the remainder within the program's tolerances takes the same paths
            scale = wanted / sum(found.values())
            table[target] = [(path, size * scale) for path, size in sorted(found.items())]
        return table

    def _shortest(self, target: int) -> tuple[int, ...]:
        """A path of the fewest links, over the lowest servers."""
        before = {self._source: self._source}
        queue = [self._source]
        for server in queue:
            for tail, head in self._edges:
                if tail == server and head not in before:
                    before[head] = server
                    queue.append(head)
        if target not in before:
            raise ValueError(f"traffic: no path from server {self._source} to {target}")
        way = [target]
        while way[-1] != self._source:
            way.append(before[way[-1]])
        return tuple(reversed(way))

    def _widest(self, target: int) -> tuple[int, ...]:
        """A loop-free path of what is left; () if nothing is. Cycles on the way are removed."""
        way = [target]
        while way[-1] != self._source:
            into = self._into[way[-1]]
            if not into:
                return ()
            tail = max(into, key=lambda server: (into[server], -server))
            if tail in way:
                cycle = way[way.index(tail) :]
                cycle = [tail, *reversed(cycle)]
                self._take(tuple(cycle), np.inf)
                way = [target]
                continue
            way.append(tail)
        return tuple(reversed(way))

    def _take(self, path: tuple[int, ...], most: float) -> float:
        """Removes what fits through `path` from what is left; at most `most`."""
        size = min(most, *(self._into[head][tail] for tail, head in itertools.pairwise(path)))
        for tail, head in itertools.pairwise(path):
            self._into[head][tail] -= size
            if self._into[head][tail] <= _ZERO:
                del self._into[head][tail]
        return size
