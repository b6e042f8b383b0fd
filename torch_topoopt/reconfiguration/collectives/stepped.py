"""Collectives for ranks that run them: one topology after the other, and back to the plan's.

All circuits of a topology move together, while nothing is in flight. Each topology has its hops, a
block from a server to the next, in the order of the sends. Candidates are those of the planner with
circuits of different strides at each server: two to the same server would share one connection.
`whole` is not among them: servers would add in different orders, and sums of floating-point numbers
would differ between servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.schedule import circulant_links
from torch_topoopt.reconfiguration.collectives.planner import candidate_plans, check
from torch_topoopt.reconfiguration.collectives.port_timeline import (
    MovesTogetherError,
    timeline,
    together_seconds,
)
from torch_topoopt.reconfiguration.collectives.replay import replay

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

    Its hops fit any size.
    """

    plan: PortPlan
    timeline: PortTimeline

    def running_s(self, total_bytes: float, costs: CircuitCosts) -> float:
        """The predicted seconds for so many bytes, with the move back to the plan's circuits."""
        return together_seconds(self.plan, costs, total_bytes)[0] + costs.reconfiguration_s

    @cached_property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """Of each topology, for each port; 0: the port is dark."""
        found = []
        current = [0] * self.timeline.degree
        for begin_s in self._begins_s:
            moves = [move for move in self.timeline.moves if move.begin_s == begin_s]
            moved = {move.port: move.stride for move in moves}
            for port, stride in enumerate(current):
                if stride in moved.values():
                    current[port] = 0
            for port, stride in moved.items():
                current[port] = stride
            found.append(tuple(current))
        return tuple(found)

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
            for hop in self._hops_of(send, self.strides[number][send.port]):
                _, receiver, block, part, _ = hop
                if self.timeline.collective == "broadcast":
                    if receiver == 0 or (receiver, block, part) in held:
                        continue
                    held.add((receiver, block, part))
                found[number].append(hop)
        return found

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
    collective: str, servers: int, degree: int, costs: CircuitCosts, total_bytes: float
) -> list[SteppedCollective]:
    """The fastest for each number of topologies, in ascending order; each is replayed.

    Raises ValueError as `planner.check`.
    """
    check(collective, servers, degree, total_bytes)
    best: dict[int, tuple[float, PortPlan]] = {}
    for ports in range(1, min(degree, servers - 1) + 1):
        for plan in candidate_plans(collective, servers, ports, costs, total_bytes):
            if any(phase.kind == _DOUBLES for route in plan.routes for phase in route.phases):
                continue
            try:
                seconds, topologies = together_seconds(plan, costs, total_bytes)
            except MovesTogetherError:
                continue
            if topologies not in best or seconds < best[topologies][0]:
                best[topologies] = (seconds, plan)
    found = []
    for _, (_, plan) in sorted(best.items()):
        made = timeline(plan, costs, total_bytes, together=True)
        replay(made, costs)
        found.append(SteppedCollective(plan, made))
    return found
