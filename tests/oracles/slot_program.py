"""The fewest slots of any sequence of topologies, by an integer program; for few servers.

Variables: which circuits each topology has, how many of each source's chunks go over each circuit,
how many wait where. A topology lasts as long as its busiest circuit; the sum is minimised. In which
slot a hop is the program does not see, so its optimum bounds the slots of every schedule from
below, and a schedule that takes as many is optimal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.bounds import carried_bound_slots

Coefficients = dict[int, float]


@dataclass(frozen=True)
class ProgramResult:
    """`proven_slots`: no schedule takes fewer. `solved`: that is the program's optimum, else what
    was proven in its time."""

    proven_slots: int
    solved: bool


class _SequenceProgram:
    """Rows of the program; the variables are numbered as they are made."""

    def __init__(self, servers: int, degree: int, topologies: int, known: int) -> None:
        n, d = servers, topologies
        self.n, self.d, self.degree = n, d, degree
        self.circuit = np.arange(d * n * n).reshape(d, n, n)
        self.sent = self.circuit.size + np.arange(d * n**3).reshape(d, n, n, n)  # by source
        self.held = (
            self.circuit.size + self.sent.size + np.arange((d + 1) * n * n).reshape(d + 1, n, n)
        )
        self.longest = self.circuit.size + self.sent.size + self.held.size + np.arange(d)
        self.size = int(self.longest[-1]) + 1
        self._rows: list[Coefficients] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._write(known)

    def solve(self, limit_s: float) -> tuple[float, bool]:
        """(proven lower bound, whether it is the optimum)."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        data = [value for row in self._rows for value in row.values()]
        columns = [column for row in self._rows for column in row]
        starts = np.cumsum([0, *map(len, self._rows)])
        matrix = csr_matrix((data, columns, starts), shape=(len(self._rows), self.size))
        low, high = np.zeros(self.size), np.full(self.size, float(self.n * self.n))
        high[self.circuit.ravel()] = 1
        diagonal = np.arange(self.n)
        high[self.circuit[:, diagonal, diagonal].ravel()] = 0
        first, last = 1 - np.eye(self.n), np.eye(self.n)  # source has all; all have theirs
        start, end = self.held[0], self.held[self.d]
        low[start] = high[start] = last * (self.n - 1)
        low[end] = high[end] = first
        cost = np.zeros(self.size)
        cost[self.longest] = 1
        low[self.circuit[0, 0, 1]] = 1  # whichever two servers they are
        found = milp(
            cost,
            constraints=LinearConstraint(matrix, self._low, self._high),
            integrality=np.ones(self.size),
            bounds=Bounds(low, high),
            options={"time_limit": limit_s},
        )
        proven = found.mip_dual_bound
        return (0.0 if proven is None else float(proven)), found.status == 0

    def _add(self, row: Coefficients, low: float, high: float) -> None:
        self._rows.append(row)
        self._low.append(low)
        self._high.append(high)

    def _write(self, known: int) -> None:
        n, d = self.n, self.d
        for i in range(d):
            for a in range(n):
                self._add({int(c): 1.0 for c in self.circuit[i, a]}, 0, self.degree)
                self._add({int(c): 1.0 for c in self.circuit[i, :, a]}, 0, self.degree)
                for b in range(n):
                    if a != b:
                        self._write_circuit(i, a, b)
            for source in range(n):
                for a in range(n):
                    row = {
                        int(self.held[i, source, a]): 1.0,
                        int(self.held[i + 1, source, a]): -1.0,
                    }
                    for b in range(n):
                        if a != b:
                            row[int(self.sent[i, source, b, a])] = 1.0
                            row[int(self.sent[i, source, a, b])] = -1.0
                    self._add(row, 0, 0)
        self._add({int(z): 1.0 for z in self.longest}, known, np.inf)

    def _write_circuit(self, i: int, a: int, b: int) -> None:
        """What goes over it: nothing where there is none, and no more than the topology lasts."""
        n = self.n
        load = {int(self.sent[i, source, a, b]): 1.0 for source in range(n)}
        self._add({**load, int(self.longest[i]): -1.0}, -np.inf, 0)
        circuit = int(self.circuit[i, a, b])
        for source in range(n):
            most = float(n - 1)
            self._add({int(self.sent[i, source, a, b]): 1.0, circuit: -most}, -np.inf, 0)


def least_slots(
    servers: int, degree: int, topologies: int, *, limit_s: float = 60.0
) -> ProgramResult:
    """Solves the program, for at most `limit_s` seconds. Raises ValueError as the bounds do."""
    known = carried_bound_slots(servers, degree, topologies)
    proven, solved = _SequenceProgram(servers, degree, topologies, known).solve(limit_s)
    return ProgramResult(max(known, int(np.ceil(proven - 1e-6))), solved)
