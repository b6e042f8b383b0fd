"""Collectives for ranks that run them: one topology after the other, and back to the plan's.

All circuits of a topology move together, while nothing is in flight. Each topology has its hops, a
block from a server to the next, in the order of the sends. Candidates are those of the planner with
circuits of different strides at each server: two to the same server would share one connection.
`whole` is not among them: servers would add in different orders, and sums of floating-point numbers
would differ between servers.

Topologies whose circuits are in the plan need no move. So members may exchange roles: member u x
takes that of member x, with a u that has no common divisor with their number. This multiplies all
strides by u.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.costs import count_moves
from torch_topoopt.reconfiguration.all_to_all.schedule import circulant_links
from torch_topoopt.reconfiguration.collectives.planner import candidate_plans, check
from torch_topoopt.reconfiguration.collectives.port_timeline import (
    MovesTogetherError,
    timeline,
    together_seconds,
    topology_strides,
)
from torch_topoopt.reconfiguration.collectives.replay import replay
from torch_topoopt.reconfiguration.plan_circuits import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.collectives.port_timeline import (
        PortPlan,
        PortSend,
        PortTimeline,
    )

BlockHop = tuple[int, int, int, int, int]  # sender, receiver, block, part, 1 for a sum

_DOUBLES = "double"  # kind of a phase of `whole`


@dataclass(frozen=True, eq=False)
class SteppedCollective:
    """The plan of a collective whose circuits move together, and its timeline for one size.

    Its hops fit any size. Member `unit` x takes the role of member x. `present` are the strides of
    the plan's own circuits.
    """

    plan: PortPlan
    timeline: PortTimeline
    unit: int = 1
    present: frozenset[int] = frozenset()

    def running_s(self, total_bytes: float, costs: CircuitCosts) -> float:
        """The predicted seconds for so many bytes in a job."""
        seconds, strides = together_seconds(self.plan, costs, total_bytes)
        return seconds + (costs.moves(self.of_the_plan) - len(strides)) * costs.reconfiguration_s

    @property
    def moves(self) -> int:
        """With the one back to the plan's circuits."""
        return count_moves(self.of_the_plan)

    @cached_property
    def of_the_plan(self) -> tuple[bool, ...]:
        """Of each topology, whether the plan has all of its circuits."""
        return tuple(_lit(strides) <= self.present for strides in self.strides)

    @cached_property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """Of each topology, for each port; 0: the port is dark."""
        return _relabelled(self._role_strides, self.unit, self.timeline.servers)

    @cached_property
    def _role_strides(self) -> tuple[tuple[int, ...], ...]:
        return topology_strides(self.timeline.moves, self.timeline.degree)

    @property
    def links(self) -> NDArray[np.int32]:
        """`links[topology, server, port]` is the server that a port sends to; its own if dark."""
        return circulant_links(self.timeline.servers, self.strides)

    @property
    def reconfigurations(self) -> int:
        """The number of topologies."""
        return len(self._begins_s)

    @cached_property
    def _begins_s(self) -> list[float]:
        return sorted({move.begin_s for move in self.timeline.moves})

    def hops(self) -> list[list[BlockHop]]:
        """Of each topology, in the order of the sends.

        A server of a broadcast that relays a block keeps it, and gets it once.
        """
        held: set[tuple[int, int, int]] = set()
        found: list[list[BlockHop]] = [[] for _ in self._begins_s]
        for send in sorted(self.timeline.sends, key=lambda send: send.begin_s):
            number = int(np.searchsorted(self._begins_s, send.begin_s, side="right")) - 1
            for hop in self._hops_of(send, self._role_strides[number][send.port]):
                _, receiver, block, part, _ = hop
                if self.timeline.collective == "broadcast":
                    if receiver == 0 or (receiver, block, part) in held:
                        continue
                    held.add((receiver, block, part))
                found[number].append(self._by_members(hop))
        return found

    def _by_members(self, hop: BlockHop) -> BlockHop:
        """The hop of roles as that of the members; each member's own block keeps its member."""
        sender, receiver, block, part, adds = hop
        by, n = self.unit, self.timeline.servers
        return sender * by % n, receiver * by % n, block * by % self.timeline.blocks, part, adds

    def _hops_of(self, send: PortSend, stride: int) -> Iterator[BlockHop]:
        n, blocks, part = self.timeline.servers, self.timeline.blocks, send.part
        scattered = self.timeline.collective == "broadcast" and part.senders is not None
        for sender in range(n) if part.senders is None else part.senders:
            for offset in part.offsets or (-sender,):
                block = sender + offset
                if scattered and block >= blocks:
                    continue  # blocks are scattered once, not around the ring
                receiver = (sender + stride) % n
                yield sender, receiver, block % blocks, send.piece, int(send.reduces)


def stepped_collectives(
    collective: str,
    servers: int,
    degree: int,
    costs: CircuitCosts,
    total_bytes: float,
    present: frozenset[int] = frozenset(),
) -> list[SteppedCollective]:
    """The fastest for each number of topologies, in ascending order; each is replayed.

    `present` are the strides of the plan's own circuits. A schedule that needs no others is there
    only if there is no other for any number of topologies: the collectives of the plan's circuits
    have better ones. Raises ValueError as `planner.check`.
    """
    check(collective, servers, degree, total_bytes)
    best: dict[int, tuple[float, PortPlan, int]] = {}
    unmoved: dict[int, tuple[float, PortPlan, int]] = {}
    for ports in range(1, min(degree, servers - 1) + 1):
        for plan in candidate_plans(collective, servers, ports, costs, total_bytes):
            if any(phase.kind == _DOUBLES for route in plan.routes for phase in route.phases):
                continue
            try:
                seconds, strides = together_seconds(plan, costs, total_bytes)
            except MovesTogetherError:
                continue
            moves, unit = _fewest_moves(strides, servers, present)
            seconds += (moves - len(strides)) * costs.reconfiguration_s
            kept = best if moves else unmoved
            if len(strides) not in kept or seconds < kept[len(strides)][0]:
                kept[len(strides)] = (seconds, plan, unit)
    found = []
    for _, (_, plan, unit) in sorted((best or unmoved).items()):
        made = timeline(plan, costs, total_bytes, together=True)
        replay(made, costs)
        found.append(SteppedCollective(plan, made, unit, present))
    return found


def _fewest_moves(
    strides: tuple[tuple[int, ...], ...], servers: int, present: frozenset[int]
) -> tuple[int, int]:
    """With the one back, and the smallest unit for which it holds."""
    return min(
        (
            count_moves(_lit(ports) <= present for ports in _relabelled(strides, unit, servers)),
            unit,
        )
        for unit in (units(servers) if present else (1,))
    )


def _relabelled(
    strides: tuple[tuple[int, ...], ...], unit: int, servers: int
) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(unit * stride % servers for stride in ports) for ports in strides)


def _lit(strides: tuple[int, ...]) -> frozenset[int]:
    return frozenset(stride for stride in strides if stride)
