"""Whether circuits move for an all-to-all of a job, and the schedule: the fastest predicted.

A move costs the measured time of the switch. There is one more move than topologies, because the
plan's own circuits are restored at the end, unless that is hidden; topologies that the plan has
need none. The alternative
is the all-to-all over the plan's links, along the routes of its hosts' kernels, bound by the
busiest link.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts, count_moves
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.choice import Choice, Moving
from torch_topoopt.reconfiguration.matrix_planning import running_s
from torch_topoopt.reconfiguration.matrix_plans import MatrixPlans
from torch_topoopt.reconfiguration.plan_circuits import PlanCircuits, units

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.plan import Plan
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.reconfiguration.installed_circuits import CircuitMover

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

    moving: Moving[AllToAllSchedule]
    program: str
    static_s: float


class AllToAllChooser:
    """Chooses for groups of servers of one plan; `move_s` is the time of a move.

    Circuits `always` move, by the fastest schedule, or only where that is faster than staying.
    Topologies have `circuits` out of each server, by default one per port; each carries `gbps` of
    data, by default the cluster's. The service moves circuits `ahead` of collectives, or not.
    Raises ValueError for a plan of one server.

    Schedules are those for equal sizes, and planned ones (matrix_plans.py). A matrix is planned in
    the background when it comes for the second time and a plan may gain. In schedules for equal
    sizes, servers exchange roles so that the plan has as many of their topologies as possible.
    """

    def __init__(
        self,
        plan: Plan,
        move_s: float,
        *,
        always: bool = False,
        circuits: int | None = None,
        gbps: float | None = None,
        ahead: bool = False,
    ) -> None:
        cluster = plan.cluster
        self._always = always
        self.costs = CircuitCosts(gbps or cluster.link_gbps, cluster.link_latency_s, move_s, ahead)
        self.degree = min(circuits or cluster.degree, cluster.servers - 1)
        self.plans = MatrixPlans(self.degree, self.costs)
        self._circuits = PlanCircuits(plan)
        self._schedules: dict[tuple[int, ...], tuple[AllToAllSchedule, ...]] = {}
        self._prices: dict[tuple[bytes, tuple[int, ...]], _Prices] = {}
        self.schedules = self.schedules_of(tuple(range(cluster.servers)))

    def schedules_of(self, servers: tuple[int, ...]) -> tuple[AllToAllSchedule, ...]:
        """Those for equal sizes of a group, one for each number of topologies."""
        if servers not in self._schedules:
            degree = min(self.degree, len(servers) - 1)
            found = strategies(len(servers), degree)
            self._schedules[servers] = tuple(self._placed(one.schedule, servers) for one in found)
        return self._schedules[servers]

    def _placed(self, schedule: AllToAllSchedule, servers: tuple[int, ...]) -> AllToAllSchedule:
        """With the roles of servers for which it has the fewest moves."""

        def moves(unit: int) -> int:
            links = schedule.relabelled(unit).links
            return count_moves(self._circuits.present(links, servers))

        best = min(units(len(servers)), key=moves)
        return schedule if best == 1 else schedule.relabelled(best)

    def __call__(self, matrix: NDArray[np.int64], servers: tuple[int, ...]) -> Choice:
        """`matrix[i, j]` are the bytes of servers[i] for servers[j]."""
        matrix = matrix.copy()
        np.fill_diagonal(matrix, 0)
        if self.plans.collect() or len(self._prices) >= _KEPT:
            self._prices.clear()
        key = (matrix.tobytes(), servers)
        if key not in self._prices:
            self._prices[key] = self._priced(matrix, servers)
        prices = self._prices[key]
        note = self.plans.request(matrix) if self._plan_may_gain(matrix, prices) else ""
        return self._choice(prices, note)

    def close(self) -> None:
        """Ends a plan that is being made."""
        self.plans.close()

    def _priced(self, matrix: NDArray[np.int64], servers: tuple[int, ...]) -> _Prices:
        candidates = [
            ("the schedule for equal sizes", schedule) for schedule in self.schedules_of(servers)
        ]
        if nearest := self.plans.nearest(matrix):
            candidates.append((f"schedule {nearest.number} for such sizes", nearest.schedule))
        static_s = self.costs.slot_s(self._circuits.busiest_bytes(matrix, servers))
        found = []
        for program, schedule in candidates:
            found.append(_Prices(self.moving(schedule, matrix, servers), program, static_s))
        if self._always:
            found = [prices for prices in found if count_moves(prices.moving.present)] or found
        return min(found, key=lambda prices: prices.moving.seconds)

    def moving(
        self, schedule: AllToAllSchedule, matrix: NDArray[np.int64], servers: tuple[int, ...]
    ) -> Moving[AllToAllSchedule]:
        """The schedule with its predicted time."""
        present = self._circuits.present(schedule.links, servers)
        return Moving(schedule, present, running_s(schedule, matrix, self.costs, present))

    def _plan_may_gain(self, matrix: NDArray[np.int64], prices: _Prices) -> bool:
        """Whether a schedule at the bound of the busiest server's circuits would be faster."""
        busiest = max(int(matrix.sum(axis=0).max()), int(matrix.sum(axis=1).max()))
        degree = min(self.degree, len(matrix) - 1)
        bound_s = self.costs.moving_s([False]) + busiest / degree * self.costs.byte_s
        moving_s = prices.moving.seconds
        now_s = moving_s if self._always else min(moving_s, prices.static_s)
        return bound_s < _LEAST_GAIN * now_s

    def _choice(self, prices: _Prices, note: str) -> Choice:
        return Choice.between(
            prices.moving,
            prices.static_s,
            costs=self.costs,
            always=self._always,
            note=f"; {prices.program}; {note}" if note else f"; {prices.program}",
        )
