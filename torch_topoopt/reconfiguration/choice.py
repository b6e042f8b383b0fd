"""The choice for one collective: a schedule for its circuits, or those of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from torch_topoopt.plan.units import counted, format_seconds
from torch_topoopt.reconfiguration.all_to_all.costs import count_moves

if TYPE_CHECKING:
    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.reconfiguration.collectives.stepped import SteppedCollective

ScheduleT = TypeVar("ScheduleT", covariant=True)


@dataclass(frozen=True)
class Moving(Generic[ScheduleT]):
    """A schedule with its predicted time; `present` says of each topology whether the plan has its
    circuits."""

    schedule: ScheduleT
    present: tuple[bool, ...]
    seconds: float


@dataclass(frozen=True)
class Choice:
    """The choice for one collective, with its reason; without a schedule circuits stay.

    Predicted seconds are of the fastest schedule, and of the plan's circuits. `kind` is the reason
    without numbers. `present` says of each topology of the schedule whether the plan has its
    circuits; missing ones are not there.
    """

    schedule: AllToAllSchedule | SteppedCollective | None
    why: str
    moving_predicted_s: float = 0.0
    static_predicted_s: float = 0.0
    kind: str = ""
    present: tuple[bool, ...] = ()

    @classmethod
    def between(
        cls,
        moving: Moving[AllToAllSchedule | SteppedCollective],
        static_s: float,
        *,
        costs: CircuitCosts,
        always: bool,
        note: str = "",
    ) -> Choice:
        """The faster of the fastest schedule and the plan's circuits; `always` the former.

        `note` ends the reason.
        """
        faster, moves = moving.seconds < static_s, costs.moves(moving.present)
        if always:
            head = "reconfigure was requested"
        elif faster:
            head = "moving is faster" if moves else "a schedule on the plan's circuits is faster"
        else:
            head = "moving does not pay"
        move_s, topologies = costs.reconfiguration_s, moving.schedule.reconfigurations
        why = (
            f"{head}: {format_seconds(moving.seconds)} predicted with {counted(moves, 'move')} of "
            f"{format_seconds(move_s)} (topologies: {topologies}), "
            f"{format_seconds(static_s)} on the plan's circuits{note}"
        )
        schedule = moving.schedule if always or faster else None
        return cls(schedule, why, moving.seconds, static_s, head + note, moving.present)

    @property
    def present_topologies(self) -> tuple[bool, ...]:
        """`present` for every topology of the schedule; empty without one."""
        count = 0 if self.schedule is None else self.schedule.reconfigurations
        return (*self.present, *[False] * count)[:count]

    @property
    def moves(self) -> int:
        """How often circuits move, the move back included."""
        return 0 if self.schedule is None else count_moves(self.present_topologies)
