"""Timelines of collectives in the packet simulator.

Each send over a circuit is a flow. It starts when the previous send on it has arrived, when the
circuit is up, and when the required parts of the piece have arrived at the server. Times of the
timeline only give the order. A port moves when all servers have delivered their sends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt import _core
from torch_topoopt.reconfiguration.all_to_all.packet_level import check_packets
from torch_topoopt.sim import run_program

if TYPE_CHECKING:
    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.collectives.port_timeline import (
        PortMove,
        PortSend,
        PortTimeline,
    )
    from torch_topoopt.sim import FlowsResult


def simulated_timeline(
    timeline: PortTimeline, costs: CircuitCosts, *, level: str = "packet", **options: Any
) -> FlowsResult:
    """Runs a replayed timeline at a level of `sim.run_flows`; `options` are those of the packet
    level.

    Raises ValueError for unknown options, and as `check_packets`.
    """
    n = timeline.servers
    block_bytes = timeline.total_bytes / timeline.pieces / timeline.blocks
    if level == "packet":
        flows = [
            (n if send.part.senders is None else len(send.part.senders), send.part.count)
            for send in timeline.sends
        ]
        check_packets(((count, blocks * block_bytes) for count, blocks in flows), options)
    return run_program(
        _TimelineProgram(timeline, costs, block_bytes).program, level=level, **options
    )


class _TimelineProgram:
    """Moves and sends in the order of their beginnings, with their dependencies."""

    def __init__(self, timeline: PortTimeline, costs: CircuitCosts, block_bytes: float) -> None:
        self.timeline, self.costs, self.block_bytes = timeline, costs, block_bytes
        self.program = _core.FlowProgram(timeline.servers, timeline.servers)
        self.circuits: dict[tuple[int, int], int] = {}  # per server and port
        self.stride: dict[int, int] = {}
        self.moved: dict[int, int] = {}  # per port: its latest move
        self.before: dict[tuple[int, int], int] = {}  # per server and port: its latest flow
        self.arrivals: dict[tuple[int, int], list[tuple[float, int]]] = {}  # of a piece at a server
        events: list[tuple[float, int, PortMove | PortSend]] = [
            *((move.begin_s, 0, move) for move in timeline.moves),
            *((send.begin_s, 1, send) for send in timeline.sends),
        ]
        for _, sends, event in sorted(events, key=lambda one: one[:2]):
            if sends:
                self._send(event)  # type: ignore[arg-type]
            else:
                self._move(event)  # type: ignore[arg-type]

    def _move(self, move: PortMove) -> None:
        moved = self.program.add_delay(self.costs.reconfiguration_s)
        if move.port in self.moved:
            self.program.add_dependency(self.moved[move.port], moved)
        for server in range(self.timeline.servers):
            flow = self.before.pop((move.port, server), None)
            if flow is not None:
                self.program.add_dependency(flow, moved)
            self.circuits.pop((move.port, server), None)
        self.moved[move.port] = moved
        self.stride[move.port] = move.stride

    def _send(self, send: PortSend) -> None:
        n, part = self.timeline.servers, send.part
        began = []
        for server in range(n) if part.senders is None else part.senders:
            end = (server + self.stride[send.port]) % n
            here = (send.port, server)
            if here not in self.circuits:
                bits_per_s, latency_ns = self.costs.link_gbps * 1e9, self.costs.latency_s * 1e9
                self.circuits[here] = self.program.add_link(server, end, bits_per_s, latency_ns)
            size = part.count * self.block_bytes
            flow = self.program.add_flow(server, end, size, [self.circuits[here]])
            self.program.add_dependency(self.before.get(here, self.moved[send.port]), flow)
            for end_s, earlier in self.arrivals.get((send.piece, server), ()):
                if end_s <= send.begin_s:
                    self.program.add_dependency(earlier, flow)
            self.before[here] = flow
            began.append((end, flow))
        for end, flow in began:  # afterwards, as simultaneous sends are independent
            known = self.arrivals.setdefault((send.piece, end), [])
            known.append((send.end_s, flow))
