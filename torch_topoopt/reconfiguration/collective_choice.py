"""Whether circuits move for a collective other than an all-to-all, and how often.

The alternative is the collective on the plan's circuits, in the time that the ranks predict for
their algorithm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.choice import Choice, Moving
from torch_topoopt.reconfiguration.collectives.stepped import stepped_collectives
from torch_topoopt.reconfiguration.plan_circuits import PlanCircuits

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
        ahead: bool = False,
    ) -> None:
        cluster = plan.cluster
        self._always = always
        self.costs = CircuitCosts(gbps or cluster.link_gbps, cluster.link_latency_s, move_s, ahead)
        self._circuits = circuits or cluster.degree
        self._plan = PlanCircuits(plan)
        self._schedules: dict[tuple[str, int, int, frozenset[int]], list[SteppedCollective]] = {}
        self._fastest: dict[tuple[str, int, tuple[int, ...]], tuple[float, SteppedCollective]] = {}

    @property
    def least_s(self) -> float:
        """The moves of one topology: schedules that move less are those of the plan's circuits."""
        return 0.0 if self._always else self.costs.moving_s([False])

    def schedules(
        self, collective: str, total_bytes: int, servers: tuple[int, ...]
    ) -> list[SteppedCollective]:
        """One for each number of topologies, planned for the next power of two of bytes."""
        power, n = max(1, total_bytes - 1).bit_length(), len(servers)
        key = (collective, power, n, self._plan.strides(servers))
        if key not in self._schedules:
            self._schedules[key] = stepped_collectives(
                collective, n, min(self._circuits, n - 1), self.costs, 1 << power, key[3]
            )
        return self._schedules[key]

    def __call__(
        self, collective: str, total_bytes: int, planned_s: float, servers: tuple[int, ...]
    ) -> Choice:
        """`planned_s` are the predicted seconds on the plan's circuits."""
        key = (collective, total_bytes, servers)
        if key not in self._fastest:
            if len(self._fastest) >= _KEPT:
                self._fastest.clear()
            self._fastest[key] = self._predicted(*key)
        moving_s, fastest = self._fastest[key]
        if not fastest.moves and not self._always:
            head = "the plan has all circuits of the schedules"
            return Choice(None, head, moving_s, planned_s, head)
        return Choice.between(
            Moving(fastest, fastest.of_the_plan, moving_s),
            planned_s,
            costs=self.costs,
            always=self._always,
        )

    def _predicted(
        self, collective: str, total_bytes: int, servers: tuple[int, ...]
    ) -> tuple[float, SteppedCollective]:
        """Seconds of the fastest schedule, and the schedule; of equals the one with fewer moves."""
        found = [
            (schedule.running_s(total_bytes, self.costs), schedule)
            for schedule in self.schedules(collective, total_bytes, servers)
        ]
        return min(found, key=lambda one: one[0])
