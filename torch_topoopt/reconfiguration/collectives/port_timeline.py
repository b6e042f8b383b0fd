"""The timeline of every port: its sends, and the moves of its circuits.

A message is cut into pieces, which pass through the phases one after another. A port serves some of
the phases, in order. It moves as soon as its sends of one phase are done, while others carry
(SWOT's overlap). Of the ports that serve a phase, a piece takes the one on which it starts first.
All servers act alike at the same time, except idle ones in a chain or a scatter.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.collectives.phases import Phase, StridePart


@dataclass(frozen=True)
class PortMove:
    """From `begin_s` to `end_s` a port of every server is dark; then server x sends to x +
    `stride`."""

    port: int
    stride: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class PortSend:
    """`part` of a piece on a port; its receivers add it up if it `reduces`."""

    port: int
    begin_s: float
    end_s: float
    piece: int
    part: StridePart
    reduces: bool


@dataclass(frozen=True, eq=False)
class PortTimeline:
    """A collective of `total_bytes`: the whole message of a server or, for AllGather, of all. A
    piece has `blocks` blocks."""

    collective: str
    servers: int
    degree: int
    total_bytes: float
    pieces: int
    blocks: int
    moves: tuple[PortMove, ...]
    sends: tuple[PortSend, ...]

    @property
    def seconds(self) -> float:
        """Until the last byte is there."""
        return max(send.end_s for send in self.sends)

    @property
    def reconfigurations(self) -> int:
        """The largest number of moves of one port, its first circuits included."""
        ports = [move.port for move in self.moves]
        return max(ports.count(port) for port in set(ports))


@dataclass(frozen=True)
class PieceRoute:
    """Phases of some pieces, and the ports that serve each: one of them, or with `fan` all."""

    phases: tuple[Phase, ...]
    ports: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PortPlan:
    """The message in so many pieces, which take `routes` in turn; all have as many phases."""

    collective: str
    servers: int
    degree: int
    routes: tuple[PieceRoute, ...]
    pieces: int

    def strides(self) -> dict[int, set[int]]:
        """The strides of each used port."""
        used: dict[int, set[int]] = {}
        for route in self.routes:
            for phase, ports in zip(route.phases, route.ports, strict=True):
                for i, port in enumerate(ports):
                    used.setdefault(port, set()).add(phase.strides[i if phase.fan else 0])
        return used

    def stays(self) -> bool:
        """Whether no port ever needs a second stride."""
        return all(len(strides) == 1 for strides in self.strides().values())


@dataclass
class _Port:
    """For all servers: when it may send again, when its sends have arrived, and its stride."""

    ready_s: float = 0.0
    idle_s: float = 0.0
    stride: int = 0


class _PlanRun:
    """One pass of all pieces through all phases."""

    def __init__(self, plan: PortPlan, costs: CircuitCosts, total_bytes: float) -> None:
        self.plan, self.costs = plan, costs
        self.piece_bytes = total_bytes / plan.pieces
        self.ports = [_Port() for _ in range(plan.degree)]
        self.piece_ready_s = [0.0] * plan.pieces
        self.moves: list[PortMove] = []
        self.starts: list[tuple[Phase, int, tuple[int, ...], float]] = []  # with piece and ports

    def step_s(self, phase: Phase) -> list[float]:
        """Seconds of each step of a phase."""
        block_bytes = self.piece_bytes / phase.blocks
        return [
            self.costs.slot_s(max(part.count for part in parts) * block_bytes)
            for parts in phase.steps
        ]

    def run(self) -> float:
        """Seconds of all."""
        routes = self.plan.routes
        for number in range(len(routes[0].phases)):
            self._begin_phase(number)
            for which, route in enumerate(routes):
                phase, serving = route.phases[number], route.ports[number]
                for i, port in enumerate(serving):
                    self._move(port, phase.strides[i if phase.fan else 0])
                step_s = self.step_s(phase)
                held = 1 if phase.kind == "chain" else len(step_s)  # steps before the next piece
                groups = [serving] if phase.fan else [(port,) for port in serving]
                pieces = range(which, self.plan.pieces, len(routes))
                for piece in sorted(pieces, key=self.piece_ready_s.__getitem__):
                    start_s, group = self._send(piece, groups, step_s, held)
                    self.starts.append((phase, piece, group, start_s))
        return max(self.piece_ready_s)

    def _begin_phase(self, phase_number: int) -> None:
        """Before the sends of any piece in this phase."""

    def _move(self, number: int, stride: int) -> None:
        port = self.ports[number]
        if port.stride != stride:
            end_s = port.idle_s + self.costs.reconfiguration_s
            self.moves.append(PortMove(number, stride, port.idle_s, end_s))
            port.stride, port.ready_s, port.idle_s = stride, end_s, end_s

    def _send(
        self, piece: int, groups: Sequence[tuple[int, ...]], step_s: list[float], held: int
    ) -> tuple[float, tuple[int, ...]]:
        """(when, over which ports) a piece begins a phase."""
        ready_s = self.piece_ready_s[piece]
        start_s, group = min(
            (max(ready_s, *(self.ports[port].ready_s for port in group)), group) for group in groups
        )
        ends_s = list(accumulate(step_s, initial=start_s))  # rounds like `timeline`
        self.piece_ready_s[piece] = ends_s[-1]
        for port in group:
            self.ports[port].ready_s = ends_s[held]
            self.ports[port].idle_s = ends_s[-1]
        return start_s, group


class MovesTogetherError(ValueError):
    """A plan that needs two circuits of one stride at once, or one port for two strides."""


class _TogetherRun(_PlanRun):
    """Circuits move while no port sends, and all that a phase needs at once.

    So one topology follows the other. Raises MovesTogetherError.
    """

    def _begin_phase(self, phase_number: int) -> None:
        needed: dict[int, int] = {}
        for route in self.plan.routes:
            phase, serving = route.phases[phase_number], route.ports[phase_number]
            for i, port in enumerate(serving):
                stride = phase.strides[i if phase.fan else 0]
                if needed.setdefault(port, stride) != stride:
                    raise MovesTogetherError(f"port {port} has two strides in phase {phase_number}")
        if len(set(needed.values())) < len(needed):
            raise MovesTogetherError(f"phase {phase_number} has two circuits of one stride")
        if all(self.ports[port].stride == stride for port, stride in needed.items()):
            return
        idle_s = max(port.idle_s for port in self.ports)
        for number, state in enumerate(self.ports):
            state.idle_s = idle_s
            if number in needed:
                self._move(number, needed[number])
            elif state.stride in needed.values():
                state.stride = 0
        for state in self.ports:
            state.ready_s = state.idle_s = idle_s + self.costs.reconfiguration_s


def plan_seconds(plan: PortPlan, costs: CircuitCosts, total_bytes: float) -> float:
    """The time of a plan, without its timeline."""
    return _PlanRun(plan, costs, total_bytes).run()


def together_seconds(
    plan: PortPlan, costs: CircuitCosts, total_bytes: float
) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """The time of a plan whose circuits move together, and the strides of its topologies.

    Raises MovesTogetherError.
    """
    run = _TogetherRun(plan, costs, total_bytes)
    seconds = run.run()
    return seconds, topology_strides(run.moves, plan.degree)


def topology_strides(moves: Sequence[PortMove], degree: int) -> tuple[tuple[int, ...], ...]:
    """The stride of each port on each topology of circuits that move together; 0: it is dark."""
    found = []
    current = [0] * degree
    for begin_s in sorted({move.begin_s for move in moves}):
        moved = {move.port: move.stride for move in moves if move.begin_s == begin_s}
        for port, stride in enumerate(current):
            if stride in moved.values():
                current[port] = 0
        for port, stride in moved.items():
            current[port] = stride
        found.append(tuple(current))
    return tuple(found)


def timeline(
    plan: PortPlan, costs: CircuitCosts, total_bytes: float, *, together: bool = False
) -> PortTimeline:
    """Every move and every send of a plan. If circuits move `together`, raises
    MovesTogetherError."""
    run = (_TogetherRun if together else _PlanRun)(plan, costs, total_bytes)
    run.run()
    sends: list[PortSend] = []
    for phase, piece, group, start_s in run.starts:
        begin_s = start_s
        for parts, lasts_s in zip(phase.steps, run.step_s(phase), strict=True):
            for part in parts:
                port = group[part.port]
                sends.append(PortSend(port, begin_s, begin_s + lasts_s, piece, part, phase.reduces))
            begin_s += lasts_s
    return PortTimeline(
        plan.collective,
        plan.servers,
        plan.degree,
        total_bytes,
        plan.pieces,
        plan.routes[0].phases[0].blocks,
        tuple(run.moves),
        tuple(sends),
    )
