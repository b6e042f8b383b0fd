"""The exact optimum, as an integer program (HiGHS)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

if TYPE_CHECKING:
    from torch_topoopt.route_control.flows import RoutingProblem

    Kind = tuple[int, int, float]  # source, target, demand

LIMIT_S = 60.0


def exact_paths(problem: RoutingProblem, seed: int = 0, *, limit_s: float = LIMIT_S) -> list[int]:
    """The choice of least `max_link_load`. Flows of the same ends and demand share one variable for
    each of their paths, which counts them.

    `seed` changes nothing. Raises ValueError where HiGHS needs more than `limit_s` seconds.
    """
    if not problem.flows:
        return []
    network = problem.network
    kinds = Counter((f.source, f.target, f.demand) for f in problem.flows)
    first: dict[Kind, int] = {}
    columns = 1  # column 0 is the largest congestion
    counted = _Matrix()
    for row, kind in enumerate(kinds):
        first[kind] = columns
        for _ in network.paths(*kind[:2]):
            counted.set(row, columns, 1.0)
            columns += 1
    carried = _Matrix()  # demand on each link, less its capacity times column 0
    for link, number in network.link_numbers.items():
        carried.set(number, 0, -network.capacity[link])
    for kind, begin in first.items():
        for i, path in enumerate(network.paths(*kind[:2])):
            for hop in pairwise(path):
                carried.set(network.link_numbers[hop], begin + i, kind[2])
    counts = np.array(list(kinds.values()), dtype=float)
    found = milp(
        np.eye(1, columns)[0],
        integrality=1 - np.eye(1, columns)[0],
        bounds=Bounds(0, np.inf),
        constraints=[
            LinearConstraint(counted.sparse(len(kinds), columns), counts, counts),
            LinearConstraint(carried.sparse(len(network.links), columns), ub=0.0),
        ],
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )
    if found.status != 0 or found.x is None:
        raise ValueError(f"scheme: exact found no optimum within {limit_s:g} s; try local-search")
    return _dealt_out(problem, first, found.x)


@dataclass
class _Matrix:
    """A sparse matrix, entry by entry."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def set(self, row: int, column: int, value: float) -> None:
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)

    def sparse(self, rows: int, columns: int) -> coo_array:
        return coo_array((self.values, (self.rows, self.columns)), shape=(rows, columns)).tocsr()


def _dealt_out(problem: RoutingProblem, first: dict[Kind, int], x: np.ndarray) -> list[int]:
    """Paths of single flows: each path as often as the program counts for the kind."""
    left = {
        kind: [round(x[begin + i]) for i in range(len(problem.network.paths(*kind[:2])))]
        for kind, begin in first.items()
    }
    choice = []
    for flow in problem.flows:
        counts = left[flow.source, flow.target, flow.demand]
        path = next(i for i, count in enumerate(counts) if count > 0)
        counts[path] -= 1
        choice.append(path)
    return choice
