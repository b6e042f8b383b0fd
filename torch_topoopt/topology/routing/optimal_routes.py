"""Routes that minimise the maximum link utilisation, the paper's "future work" (section 5.5).

Exactly by two linear programs as far as these are small, else by moving bytes from path to path in
C++ until the maximum is proven to be within a gap of the least possible one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from torch_topoopt import _core
from torch_topoopt.plan import Pair, Route
from torch_topoopt.topology.routing.linear_program import (
    least_utilisation_flow,
    period_of,
    program_size,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_topoopt.plan import Link

Method = Literal["auto", "exact", "approximate"]

EXACT_VARIABLES = 20_000  # up to here the programs take about a second (docs/planning/topology.md)
DEFAULT_GAP = 0.01
_SWEEPS = 400
_LEAST_WEIGHT = 1e-3  # of a pair; a route with less goes to the others


@dataclass(frozen=True)
class OptimalRoutes:
    """Routes of the pairs with traffic from sources 0..period-1; those from source s + period are
    the same, moved by `period` modulo n.

    `utilisation` is what the routes reach, the maximum over links of bytes / capacity; no routing
    has less than `bound`, and `exact` says that they are equal but for rounding.
    """

    period: int
    routes: dict[Pair, tuple[Route, ...]]
    utilisation: float
    bound: float
    exact: bool

    @property
    def gap(self) -> float:
        """By which fraction of the bound the utilisation may at most be too high."""
        return self.utilisation / self.bound - 1 if self.bound else 0.0


def link_counts(servers: int, links: Sequence[Link]) -> NDArray[np.float64]:
    """Capacity [source][target] in links: how many there are from one server to the other."""
    capacity = np.zeros((servers, servers))
    for pair, count in Counter((link.source, link.target) for link in links).items():
        capacity[pair] = count
    return capacity


def optimal_routes(
    capacity: NDArray[np.float64],
    traffic: NDArray[np.float64],
    *,
    method: Method = "auto",
    gap: float = DEFAULT_GAP,
) -> OptimalRoutes:
    """Routes for `traffic` [source][target] (bytes) that minimise the maximum of bytes / capacity.

    `capacity` [source][target] is what the links from one server to another carry together, in any
    unit: their number, or their bandwidths where these differ; 0 without a link. Also pairs with a
    link may get further routes. Of all routes with this maximum, "exact" takes those with the
    fewest bytes on all links together, and "approximate" shortens what has room on shorter paths.
    "auto" is "exact" up to EXACT_VARIABLES variables, then "approximate", which ends at a proven
    `gap` or after a fixed number of sweeps; the result says which gap was reached.

    Raises ValueError for a negative, infinite or NaN entry, matrices that are not square and of
    the same size, traffic from a server to itself, a gap outside 0..1, another method, or a pair
    with traffic that has no path.
    """
    _check(capacity, traffic, method, gap)
    if not traffic.any():
        return OptimalRoutes(len(traffic), {}, 0.0, 0.0, True)
    if method == "auto":
        exact = program_size(capacity, traffic) <= EXACT_VARIABLES
    else:
        exact = method == "exact"
    if not exact:
        return _approximate(capacity, traffic, gap)
    period = period_of(capacity, traffic)
    flow = least_utilisation_flow(capacity, traffic, period)
    routes = {pair: _weighted(paths) for pair, paths in flow.ways.items()}
    reached = _utilisation(capacity, traffic, routes, period)
    return OptimalRoutes(period, routes, reached, min(flow.utilisation, reached), True)


def _approximate(
    capacity: NDArray[np.float64], traffic: NDArray[np.float64], gap: float
) -> OptimalRoutes:
    unit = float(traffic[traffic > 0].mean())  # bytes may be few or very many
    edges = [(int(a), int(b), float(capacity[a, b])) for a, b in np.argwhere(capacity > 0)]
    pairs = [(int(s), int(t), float(traffic[s, t]) / unit) for s, t in np.argwhere(traffic > 0)]
    # A little is left to the weights, whose smallest ones are given up below.
    found = _core.rerouted(len(traffic), edges, pairs, gap * 0.9, _SWEEPS)
    routes = {
        (source, target): _weighted([(tuple(path), size) for path, size in paths])
        for (source, target, _), paths in zip(pairs, found.paths, strict=True)
    }
    period = len(traffic)
    reached = _utilisation(capacity, traffic, routes, period)
    return OptimalRoutes(period, routes, reached, min(found.bound * unit, reached), False)


def _weighted(paths: Sequence[tuple[tuple[int, ...], float]]) -> tuple[Route, ...]:
    """Paths with bytes as routes with weights, heaviest first; hardly used ones are left out."""
    total = sum(size for _, size in paths)
    kept = [(path, size) for path, size in paths if size >= _LEAST_WEIGHT * total]
    kept.sort(key=lambda way: (-round(way[1] / total, 9), len(way[0]), way[0]))
    total = sum(size for _, size in kept)
    # rounded, so that the text of a Plan does not depend on the last bit
    weights = [round(size / total, 9) for _, size in kept]
    weights[0] = round(1 - sum(weights[1:]), 9)
    return tuple(Route(path, weight) for (path, _), weight in zip(kept, weights, strict=True))


def _utilisation(
    capacity: NDArray[np.float64],
    traffic: NDArray[np.float64],
    routes: dict[Pair, tuple[Route, ...]],
    period: int,
) -> float:
    """The loads of the routes of all sources; each represents those that it is moved to."""
    servers = len(traffic)
    sent = np.zeros_like(capacity)
    for pair, of_pair in routes.items():
        for route in of_pair:
            way = np.array(route.servers)
            np.add.at(sent, (way[:-1], way[1:]), traffic[pair] * route.weight)
    moves = range(0, servers, period)
    moved = np.sum([np.roll(sent, (by, by), (0, 1)) for by in moves], axis=0)
    used = capacity > 0
    return float(np.max(moved[used] / capacity[used]))


def _check(
    capacity: NDArray[np.float64], traffic: NDArray[np.float64], method: str, gap: float
) -> None:
    if method not in ("auto", "exact", "approximate"):
        raise ValueError(f"method: {method!r} is not 'auto', 'exact' or 'approximate'")
    if not 0 < gap < 1:
        raise ValueError(f"gap: {gap} is not between 0 and 1")
    for name, matrix in (("capacity", capacity), ("traffic", traffic)):
        if matrix.ndim != 2 or matrix.shape != (len(traffic), len(traffic)):
            raise ValueError(f"{name}: a matrix of {matrix.shape} is not square and as the other")
        wrong = np.argwhere(~(np.isfinite(matrix) & (matrix >= 0)))
        if len(wrong):
            source, target = wrong[0].tolist()
            value = matrix[source, target]
            raise ValueError(
                f"{name}: {value} from server {source} to {target} is not at least 0 and finite"
            )
    if np.diagonal(traffic).any():
        server = int(np.flatnonzero(np.diagonal(traffic))[0])
        raise ValueError(f"traffic: server {server} sends bytes to itself")
