"""Whether circuits move for an all-to-all of a job, and the schedule: the fastest predicted.

A move costs the measured time of the switch. There is one more move than topologies, because the
plan's own circuits are restored at the end. The alternative is the all-to-all over the plan's
links, along the routes of its hosts' kernels, bound by the busiest link.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from statistics import median
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

_KEPT = 256  # cached choices, one per matrix
_MEASURED_MOVES = 3  # to the topology, and back


def measured_move_s(plan: Plan, mover: CircuitMover, circuits: int | None = None) -> float:
    """Seconds of one move of `circuits` of each server (None: all), a median.

    Raises FabricError. The mover is closed afterwards, and another thread may use it.
    """
    number = mover.prepare(_moved_targets(plan, circuits or plan.cluster.degree))
    seconds = []
    for _ in range(_MEASURED_MOVES):
        for move in (partial(mover.move, number), mover.restore):
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


class AllToAllChooser:
    """Chooses for matrices of one plan; `move_s` is the time of a move.

    Circuits `always` move, by the fastest schedule, or only where that is faster than staying.
    Topologies have `circuits` out of each server, by default one per port; each carries `gbps` of
    data, by default the cluster's. Raises ValueError for a plan of one server.
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
        self._servers = cluster.servers
        self._always = always
        self._costs = CircuitCosts(gbps or cluster.link_gbps, cluster.link_latency_s, move_s)
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
            why = "reconfigure was requested"
        elif moving_s < static_s:
            why = "moving is faster"
        else:
            return Choice(None, f"moving does not pay: {text}", moving_s, static_s)
        return Choice(schedule, f"{why}: {text}", moving_s, static_s)

    def moving_s(self, schedule: AllToAllSchedule, matrix: NDArray[np.int64]) -> float:
        """The predicted seconds, with the way back.

        A slot lasts as long as its largest chunk; an empty one takes no time.
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
