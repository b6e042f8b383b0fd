"""Whether circuits move for an all-to-all of a job, and by which schedule: the fastest predicted.

Moves cost what the switch was measured to take, and there is one more than topologies: the plan's
own circuits are restored afterwards. Against that stands the all-to-all over the plan's links,
along the routes that the kernels of its hosts have, bound by the busiest link.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.fabric.netns.routes import chosen_routes
from torch_topoopt.plan.units import format_seconds
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.schedule import SLOT, SOURCE, TARGET
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.circuit_service import Choice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.plan import Plan
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.reconfiguration.circuit_service import CircuitMover

_KEPT = 256  # choices; one for each matrix


def measured_move_s(plan: Plan, mover: CircuitMover) -> float:
    """Seconds of one move of all circuits, from one there and back; raises FabricError.

    The mover is closed afterwards, and another thread may use it.
    """
    number = mover.prepare(_moved_targets(plan))
    began = time.monotonic()
    mover.move(number)
    mover.restore()
    seconds = (time.monotonic() - began) / 2
    mover.close()
    return seconds


def _moved_targets(plan: Plan) -> list[list[int]]:
    """The plan's topology on other ports: none of its circuits can stay. With one port, a ring."""
    servers, degree = plan.cluster.servers, plan.cluster.degree
    if degree == 1:
        return [[(server + 1) % servers] for server in range(servers)]
    targets = [[server] * degree for server in range(servers)]
    for link in plan.network.links:
        targets[link.source][(link.source_port + 1) % degree] = link.target
    return targets


class AllToAllChooser:
    """Chooses for matrices of one plan; `move_s` is what a move takes.

    Circuits `always` move, by the schedule that is fastest, or where that is faster than staying.
    Topologies have `circuits` out of each server, by default one for each port. Raises ValueError
    for a plan of one server.
    """

    def __init__(
        self, plan: Plan, move_s: float, *, always: bool = False, circuits: int | None = None
    ) -> None:
        cluster = plan.cluster
        self._servers = cluster.servers
        self._always = always
        self._costs = CircuitCosts(cluster.link_gbps, cluster.link_latency_s, move_s)
        degree = min(circuits or cluster.degree, cluster.servers - 1)
        self.schedules = tuple(found.schedule for found in strategies(cluster.servers, degree))
        self._routes = chosen_routes(plan)
        self._choices: dict[bytes, Choice] = {}

    def __call__(self, matrix: NDArray[np.int64]) -> Choice:
        """`matrix[i, j]` are the bytes of server i for server j."""
        key = matrix.tobytes()
        if key not in self._choices:
            if len(self._choices) >= _KEPT:
                self._choices.clear()
            self._choices[key] = self._choice(matrix)
        return self._choices[key]

    def _choice(self, matrix: NDArray[np.int64]) -> Choice:
        static_s = self._static_s(matrix)
        predicted = [self.moving_s(schedule, matrix) for schedule in self.schedules]
        best = int(np.argmin(predicted))
        schedule, moving_s = self.schedules[best], predicted[best]
        text = (
            f"{format_seconds(moving_s)} predicted with {schedule.reconfigurations} topologies and "
            f"back ({format_seconds(self._costs.reconfiguration_s)} per move), "
            f"{format_seconds(static_s)} on the plan's circuits"
        )
        if self._always:
            return Choice(schedule, f"reconfigure was asked for: {text}")
        if moving_s < static_s:
            return Choice(schedule, f"moving is faster: {text}")
        return Choice(None, f"moving does not pay: {text}")

    def moving_s(self, schedule: AllToAllSchedule, matrix: NDArray[np.int64]) -> float:
        """Predicted, with the way back.

        A slot lasts as long as its largest chunk, and where all are empty no time.
        """
        sends = schedule.whole().sends
        largest = np.zeros(schedule.slots, dtype=np.int64)
        np.maximum.at(largest, sends[:, SLOT], matrix[sends[:, SOURCE], sends[:, TARGET]])
        moves_s = (schedule.reconfigurations + 1) * self._costs.reconfiguration_s
        return moves_s + sum(self._costs.slot_s(size) for size in largest[largest > 0].tolist())

    def _static_s(self, matrix: NDArray[np.int64]) -> float:
        loads: dict[tuple[int, int], int] = {}
        for (source, target), servers in self._routes.items():
            for hop in pairwise(servers):
                loads[hop] = loads.get(hop, 0) + int(matrix[source, target])
        return self._costs.slot_s(max(loads.values(), default=0))
