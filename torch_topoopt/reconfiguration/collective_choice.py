"""Whether circuits move for a collective other than an all-to-all, and how often.

The alternative is the collective on the plan's circuits, in the time that the ranks predict for
their algorithm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan.units import format_seconds
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.circuit_service import Choice
from torch_topoopt.reconfiguration.collectives.stepped import stepped_collectives

if TYPE_CHECKING:
    from torch_topoopt.plan import Plan
    from torch_topoopt.reconfiguration.collectives.stepped import SteppedCollective

_KEPT = 256  # cached predictions


class CollectiveChooser:
    """Chooses for collectives of the groups of one plan; parameters as of AllToAllChooser.

    Ranks and hosts keep every schedule that was used, so sizes from one power of two to the next
    share theirs.
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
        self._circuits = circuits or cluster.degree
        self._schedules: dict[tuple[str, int, int], list[SteppedCollective]] = {}
        self._fastest: dict[tuple[str, int, int], tuple[float, SteppedCollective]] = {}

    @property
    def least_s(self) -> float:
        """Two moves, there and back."""
        return 0.0 if self._always else 2 * self.costs.reconfiguration_s

    def schedules(self, collective: str, total_bytes: int, members: int) -> list[SteppedCollective]:
        """One for each number of topologies, planned for the next power of two of bytes."""
        key = (collective, max(1, total_bytes - 1).bit_length(), members)
        if key not in self._schedules:
            self._schedules[key] = stepped_collectives(
                collective, members, min(self._circuits, members - 1), self.costs, 1 << key[1]
            )
        return self._schedules[key]

    def __call__(self, collective: str, total_bytes: int, planned_s: float, members: int) -> Choice:
        """`planned_s` are the predicted seconds on the plan's circuits."""
        key = (collective, total_bytes, members)
        if key not in self._fastest:
            if len(self._fastest) >= _KEPT:
                self._fastest.clear()
            self._fastest[key] = self._predicted(collective, total_bytes, members)
        moving_s, fastest = self._fastest[key]
        moves = self._always or moving_s < planned_s
        if self._always:
            head = "reconfigure was requested"
        else:
            head = "moving is faster" if moves else "moving does not pay"
        why = (
            f"{head}: {format_seconds(moving_s)} predicted with {fastest.reconfigurations} "
            f"topologies and back ({format_seconds(self.costs.reconfiguration_s)} per move), "
            f"{format_seconds(planned_s)} on the plan's circuits"
        )
        return Choice(fastest if moves else None, why, moving_s, planned_s, head)

    def _predicted(
        self, collective: str, total_bytes: int, members: int
    ) -> tuple[float, SteppedCollective]:
        """Seconds of the fastest schedule, and the schedule; of equals the one with fewer moves."""
        found = [
            (schedule.running_s(total_bytes, self.costs), schedule)
            for schedule in self.schedules(collective, total_bytes, members)
        ]
        return min(found, key=lambda one: one[0])
