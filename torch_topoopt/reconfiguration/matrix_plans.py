"""The planned schedules of a job's all-to-alls, by the shape of their matrices.

Matrices of one size that differ by at most a tenth of their bytes, such as those of consecutive
batches of a mixture of experts, share a schedule. A schedule names parts of each pair's data, so it
fits any sizes of the same pairs. Plans are made in the background (matrix_planning.py), one at a
time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.matrix_planning import MatrixPlanning

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

_ALIKE = 0.1  # of the bytes
_SEEN = 64  # matrices
_MOST = 64  # schedules of a job: ranks and hosts keep all of them


@dataclass(frozen=True, eq=False)
class MatrixPlan:
    """A schedule that was planned for `matrix`; `number` counts from 1."""

    number: int
    matrix: NDArray[np.int64]
    schedule: AllToAllSchedule


class MatrixPlans:
    """Plans for matrices of bytes with a diagonal of 0; topologies have `degree` circuits."""

    def __init__(self, degree: int, costs: CircuitCosts) -> None:
        self._degree = degree
        self._costs = costs
        self._plans: list[MatrixPlan] = []
        self._failed: deque[tuple[NDArray[np.int64], str]] = deque(maxlen=_SEEN)
        self._seen: deque[NDArray[np.int64]] = deque(maxlen=_SEEN)
        self._planning: MatrixPlanning | None = None

    def nearest(self, matrix: NDArray[np.int64]) -> MatrixPlan | None:
        """The plan for the most similar matrix."""
        plans = [plan for plan in self._plans if plan.matrix.shape == matrix.shape]
        return min(plans, key=lambda plan: _distance(matrix, plan.matrix), default=None)

    def collect(self) -> bool:
        """Takes over a plan that is ready; returns whether there was one."""
        if self._planning is None or not self._planning.ended():
            return False
        matrix, found = self._planning.matrix, self._planning.result()
        self.close()
        if isinstance(found, str):
            self._failed.append((matrix, found))
            return False
        self._plans.append(MatrixPlan(len(self._plans) + 1, matrix, found))
        return True

    def request(self, matrix: NDArray[np.int64]) -> str:
        """Plans the matrix unless it is new; returns a note on a plan that is missing, or ""."""
        equal = np.full_like(matrix, matrix.sum() // max(1, matrix.size - len(matrix)))
        np.fill_diagonal(equal, 0)
        if any(_alike(matrix, other) for other in (equal, *(plan.matrix for plan in self._plans))):
            return ""
        for other, why in self._failed:
            if _alike(matrix, other):
                return f"there is none for these sizes: {why}"
        if self._planning is not None and _alike(matrix, self._planning.matrix):
            return "one for these sizes is being planned"
        if not any(_alike(matrix, other) for other in self._seen):
            self._seen.append(matrix)
            return ""
        if self._planning is not None:
            return ""
        if len(self._plans) == _MOST:
            return f"{_MOST} were planned, and a job gets no more"
        try:
            degree = min(self._degree, len(matrix) - 1)
            self._planning = MatrixPlanning(matrix, degree, self._costs)
        except OSError as error:
            self._failed.append((matrix, str(error)))
            return f"there is none for these sizes: {error}"
        return "one for these sizes is being planned"

    def close(self) -> None:
        """Ends a plan that is being made."""
        if self._planning is not None:
            self._planning.close()
            self._planning = None


def _distance(matrix: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    return int(np.abs(matrix - other).sum())


def _alike(matrix: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    same = matrix.shape == other.shape
    return same and _distance(matrix, other) <= _ALIKE * int(other.sum())
