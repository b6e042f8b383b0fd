"""Whether circuits move for an all-to-all of a job, and the schedule: the fastest predicted.

A move costs the measured time of the switch. There is one more move than topologies, because the
plan's own circuits are restored at the end. The alternative is the all-to-all over the plan's
links, along the routes of its hosts' kernels, bound by the busiest link.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.fabric.netns.routes import chosen_routes
from torch_topoopt.plan.units import format_seconds
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.circuit_service import Choice
from torch_topoopt.reconfiguration.matrix_planning import running_s
from torch_topoopt.reconfiguration.matrix_plans import MatrixPlans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.plan import Plan
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.reconfiguration.circuit_service import CircuitMover

_KEPT = 256  # cached predictions, one per matrix
_LEAST_GAIN = 0.95  # of the current time, so that a plan is made
_MEASURED_MOVES = 3  # to the topology, and back


def measured_move_s(plan: Plan, mover: CircuitMover, circuits: int | None = None) -> float:
    """Seconds of one move of `circuits` of each server (None: all), a median.

    Raises FabricError. The mover is closed afterwards, and another thread may use it.
    """
    targets = _moved_targets(plan, circuits or plan.cluster.degree)
    number = mover.prepare(dict(enumerate(targets)))
    seconds = []
    for _ in range(_MEASURED_MOVES):
        for move in (partial(mover.move, [number]), mover.restore):
            began = time.monotonic()
            move()
            seconds.append(time.monotonic() - began)
    mover.close()
    return median(seconds)


def _moved_targets(plan: Plan, circuits: int) -> list[list[int]]:
    """The plan's topology on other ports, so that every circuit moves. With one port, a ring."""
    servers, degree = plan.cluster.servers, plan.cluster.degree
    if degree == 1:
        return [[(server + 1) % servers] for server in range(servers)]
    targets = [[server] * degree for server in range(servers)]
    for link in plan.network.links:
        targets[link.source][(link.source_port + 1) % degree] = link.target
    return [ports[:circuits] for ports in targets]


@dataclass(frozen=True)
class _Prices:
    """The fastest schedule of a matrix, with its predicted seconds, and those of staying."""

    schedule: AllToAllSchedule
    program: str
    moving_s: float
    static_s: float


class AllToAllChooser:
    """Chooses for matrices of one plan; `move_s` is the time of a move.

    Circuits `always` move, by the fastest schedule, or only where that is faster than staying.
    Topologies have `circuits` out of each server, by default one per port; each carries `gbps` of
    data, by default the cluster's. Raises ValueError for a plan of one server.

    Schedules are those for equal sizes, and planned ones (matrix_plans.py). A matrix is planned in
    the background when it comes for the second time and a plan may gain.
    """

    def __init__(
        self,
        plan: Plan,
        move_s: float,
        *,
        always: bool = False,
        circuits: int | None = None,
        gbps: float | None = None,
    ) -> None:
        cluster = plan.cluster
        self._always = always
        self.costs = CircuitCosts(gbps or cluster.link_gbps, cluster.link_latency_s, move_s)
        self.degree = min(circuits or cluster.degree, cluster.servers - 1)
        self.schedules = tuple(found.schedule for found in strategies(cluster.servers, self.degree))
        self.plans = MatrixPlans(self.degree, self.costs)
        self._routes = chosen_routes(plan)
        self._prices: dict[bytes, _Prices] = {}

    def __call__(self, matrix: NDArray[np.int64]) -> Choice:
        """`matrix[i, j]` are the bytes of server i for server j."""
        matrix = matrix.copy()
        np.fill_diagonal(matrix, 0)
        if self.plans.collect() or len(self._prices) >= _KEPT:
            self._prices.clear()
        key = matrix.tobytes()
        if key not in self._prices:
            self._prices[key] = self._priced(matrix)
        prices = self._prices[key]
        note = self.plans.request(matrix) if self._plan_may_gain(matrix, prices) else ""
        return self._choice(prices, note)

    def close(self) -> None:
        """Ends a plan that is being made."""
        self.plans.close()

    def _priced(self, matrix: NDArray[np.int64]) -> _Prices:
        candidates = [("the schedule for equal sizes", schedule) for schedule in self.schedules]
        if nearest := self.plans.nearest(matrix):
            candidates.append((f"schedule {nearest.number} for such sizes", nearest.schedule))
        predicted = [running_s(schedule, matrix, self.costs) for _, schedule in candidates]
        best = int(np.argmin(predicted))
        program, schedule = candidates[best]
        return _Prices(schedule, program, predicted[best], self._static_s(matrix))

    def _plan_may_gain(self, matrix: NDArray[np.int64], prices: _Prices) -> bool:
        """Whether a schedule at the bound of the busiest server's circuits would be faster."""
        busiest = max(int(matrix.sum(axis=0).max()), int(matrix.sum(axis=1).max()))
        bound_s = 2 * self.costs.reconfiguration_s + busiest / self.degree * self.costs.byte_s
        now_s = prices.moving_s if self._always else min(prices.moving_s, prices.static_s)
        return bound_s < _LEAST_GAIN * now_s

    def _choice(self, prices: _Prices, note: str) -> Choice:
        moves = self._always or prices.moving_s < prices.static_s
        if self._always:
            head = "reconfigure was requested"
        else:
            head = "moving is faster" if moves else "moving does not pay"
        program = f"{prices.program}; {note}" if note else prices.program
        why = (
            f"{head}: {format_seconds(prices.moving_s)} predicted with "
            f"{prices.schedule.reconfigurations} topologies and back "
            f"({format_seconds(self.costs.reconfiguration_s)} per move), "
            f"{format_seconds(prices.static_s)} on the plan's circuits; {program}"
        )
        schedule = prices.schedule if moves else None
        return Choice(schedule, why, prices.moving_s, prices.static_s, f"{head}; {program}")

    def _static_s(self, matrix: NDArray[np.int64]) -> float:
        loads: dict[tuple[int, int], int] = {}
        for (source, target), servers in self._routes.items():
            for hop in pairwise(servers):
                loads[hop] = loads.get(hop, 0) + int(matrix[source, target])
        return self.costs.slot_s(max(loads.values(), default=0))
