"""The circuits of a collective, phase by phase, and whether they should move at all.

Candidates have any number of phases, with nearly equal factors, and the message in one piece or in
many. Ports have one stride after another, or several strides that pieces take in different order
(so that all ports carry equal loads), or serve phases in turns, improved by exchanges. Candidates
that stay are among them, so the fastest is never slower than the fastest that stays.

kinds: rings and grid stay, with one stride or several. steps: all circuits move between phases, as
in PCCL. whole: steps, each with the whole message. turns: some circuits move while others carry, as
in SWOT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.reconfiguration.collectives.phases import (
    COLLECTIVES,
    chained_phases,
    digits_of,
    doubling_phases,
    phases_of,
)
from torch_topoopt.reconfiguration.collectives.port_timeline import (
    PieceRoute,
    PortPlan,
    PortTimeline,
    plan_seconds,
    timeline,
)
from torch_topoopt.reconfiguration.collectives.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.collectives.phases import Digit, Phase

KINDS = ("rings", "grid", "steps", "whole", "turns")
STAYING = ("rings", "grid")
MOST_SERVERS = 512
MOST_PORTS = 8
_PIECES = (1, 2, 4, 8, 16)  # of each port
_MOST_CHAINED = 256  # pieces of a chain
_IMPROVED = 3  # plans whose turns are changed one by one
_DELAYS_S = (1e-9, 100.0)  # range of the search for the longest delay at which moving pays
_HALVINGS = 24


@dataclass(frozen=True, eq=False)
class CollectiveOption:
    """The fastest plan of its kind, and its replayed timeline; in the packet simulator, too."""

    JSON_FIELDS: ClassVar = (
        "kind", "stays", "seconds", "factors", "plan.pieces", "timeline.reconfigurations",
        "packet_seconds",
    )  # fmt: skip
    OMIT_IF_NONE: ClassVar = ("packet_seconds",)

    kind: str
    plan: PortPlan
    timeline: PortTimeline
    seconds: float
    packet_seconds: float | None = None

    @property
    def stays(self) -> bool:
        """Whether no circuit moves after the first topology."""
        return self.kind in STAYING

    @property
    def factors(self) -> tuple[int, ...]:
        """Factors by which a window grows, in each phase that spreads blocks."""
        phases = self.plan.routes[0].phases
        growing = [phase for phase in phases if phase.kind not in ("reduce", "scatter")]
        phases = tuple(growing) or phases[::-1]
        return tuple(1 + (len(p.strides) if p.fan else len(p.steps)) for p in phases)


def check(collective: str, servers: int, degree: int, total_bytes: float) -> None:
    """Raises ValueError for unsupported inputs."""
    if collective not in COLLECTIVES:
        raise ValueError(f"collective: {collective!r} is not one of {', '.join(COLLECTIVES)}")
    if not 2 <= servers <= MOST_SERVERS:
        raise ValueError(f"servers: {servers} is not from 2 to {MOST_SERVERS} for {collective}")
    if not 1 <= degree <= MOST_PORTS:
        raise ValueError(f"degree: {degree} is not from 1 to {MOST_PORTS} for {collective}")
    if not 0 < total_bytes < math.inf:
        raise ValueError(f"bytes: {total_bytes:g} is not a size above 0")


def options(
    collective: str, servers: int, degree: int, costs: CircuitCosts, total_bytes: float
) -> list[CollectiveOption]:
    """The fastest plan of each possible kind, replayed; the fastest first, ties to the one that
    stays. Raises ValueError as `check`."""
    check(collective, servers, degree, total_bytes)
    best = _best_by_kind(collective, servers, degree, costs, total_bytes, improve=True)
    found = []
    for kind, (_, plan) in best.items():
        made = timeline(plan, costs, total_bytes)
        found.append(CollectiveOption(kind, plan, made, replay(made, costs)))
    return sorted(found, key=lambda option: (option.seconds, KINDS.index(option.kind)))


def break_even_s(
    collective: str, servers: int, degree: int, costs: CircuitCosts, total_bytes: float
) -> float:
    """The longest delay of the switch at which moving circuits still pays, to some per cent.

    0 if it never does; infinity if it does at every tried delay.
    """

    def pays(delay_s: float) -> bool:
        at = replace(costs, reconfiguration_s=delay_s)
        best = _best_by_kind(collective, servers, degree, at, total_bytes, improve=False)
        stays = min(seconds for kind, (seconds, _) in best.items() if kind in STAYING)
        moving = [seconds for kind, (seconds, _) in best.items() if kind not in STAYING]
        return bool(moving) and min(moving) < stays * (1 - 1e-9)

    low, high = map(math.log, _DELAYS_S)
    if not pays(_DELAYS_S[0]):
        return 0.0
    if pays(_DELAYS_S[1]):
        return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if pays(math.exp(middle)) else (low, middle)
    return math.exp(low)


# parameters: a collective, its costs, and the search effort
def _best_by_kind(
    collective: str,
    servers: int,
    degree: int,
    costs: CircuitCosts,
    total_bytes: float,
    *,
    improve: bool,
) -> dict[str, tuple[float, PortPlan]]:
    """(seconds, plan) of the fastest of each kind."""
    best: dict[str, tuple[float, PortPlan]] = {}
    turns: list[tuple[float, PortPlan]] = []
    for plan in candidate_plans(collective, servers, degree, costs, total_bytes):
        seconds = plan_seconds(plan, costs, total_bytes)
        kind = _kind(plan)
        if kind not in best or seconds < best[kind][0]:
            best[kind] = (seconds, plan)
        if degree > 1 and len(plan.routes) == 1 and not _fanned(plan):
            turns.append((seconds, plan))
    if improve:
        for start in sorted(turns, key=lambda one: one[0])[:_IMPROVED]:
            seconds, plan = _exchanged(start, costs, total_bytes)
            kind = _kind(plan)
            if kind not in best or seconds < best[kind][0]:
                best[kind] = (seconds, plan)
    return best


def _kind(plan: PortPlan) -> str:
    if plan.stays():
        return "rings" if len(set.union(*plan.strides().values())) == 1 else "grid"
    first = plan.routes[0]
    if plan.collective == "all_reduce" and first.phases[0].blocks == 1:
        return "whole"
    together = len(plan.routes) > 1 or _fanned(plan) or len(set(first.ports)) == 1
    return "steps" if together else "turns"


def _fanned(plan: PortPlan) -> bool:
    return any(phase.fan for route in plan.routes for phase in route.phases)


def candidate_plans(
    collective: str, servers: int, degree: int, costs: CircuitCosts, total_bytes: float
) -> Iterator[PortPlan]:
    """All candidates before exchanges."""

    def plan(routes: list[PieceRoute], pieces: int) -> PortPlan:
        return PortPlan(collective, servers, degree, tuple(routes), pieces)

    for factors in _factors(servers, servers):
        digits = digits_of(servers, factors)
        makers: list[tuple[Callable[[list[Digit]], list[Phase]], list[int]]] = [
            (lambda order: phases_of(collective, servers, order, fan=False), list(_PIECES))
        ]
        if collective == "broadcast":
            parts = _chained_pieces(factors, degree, costs, total_bytes)
            makers.append((lambda order: chained_phases(servers, order, fan=False), parts))
        for phases_in, per_port in makers:
            for groups in range(1, degree + 1):
                route = _in_turns(phases_in(digits), degree, groups)
                for pieces in sorted({1, *(degree * part for part in per_port)}):
                    if pieces >= max(map(len, route.ports)):
                        yield plan([route], pieces)
            if min(degree, len(digits)) > 1:
                rotated = _rotated(phases_in, digits, degree)
                for part in per_port:
                    yield plan(rotated, degree * part)
    for factors in _factors(servers, degree + 1) if degree > 1 else ():
        digits = digits_of(servers, factors)
        yield plan([_side_by_side(phases_of(collective, servers, digits, fan=True))], 1)
        if collective == "broadcast":
            yield plan([_side_by_side(chained_phases(servers, digits, fan=True))], 1)
    exact = _exact_factors(servers, degree + 1)
    if collective == "all_reduce" and exact is not None:
        yield plan([_side_by_side(doubling_phases(servers, exact))], 1)


def _chained_pieces(
    factors: tuple[int, ...], degree: int, costs: CircuitCosts, total_bytes: float
) -> list[int]:
    """Pieces per port of a chain: about the fastest number."""
    hops = max(1, sum(factor - 1 for factor in factors) - 1)
    transfer_s = total_bytes * 8e-9 / costs.link_gbps / degree
    ideal = math.sqrt(hops * transfer_s / max(costs.latency_s, 1e-12))
    most = _MOST_CHAINED // degree
    return sorted({min(most, max(1, round(ideal * part))) for part in (0.5, 1, 2)} | {1, 4})


def _in_turns(phases: list[Phase], degree: int, groups: int) -> PieceRoute:
    """Ports in so many groups, which take turns; a stride always has the same group."""
    strides = sorted({phase.strides[0] for phase in phases})
    ports = [
        tuple(p for p in range(degree) if p % groups == strides.index(phase.strides[0]) % groups)
        for phase in phases
    ]
    return PieceRoute(tuple(phases), tuple(ports))


def _rotated(
    phases_in: Callable[[list[Digit]], list[Phase]], digits: list[Digit], degree: int
) -> list[PieceRoute]:
    """Routes of as many kinds of pieces as ports: as many digits as ports at a time, each kind
    beginning with another one, so that all ports carry equal loads in every phase."""
    routes = []
    for kind in range(degree):
        order: list[Digit] = []
        port_of: dict[int, tuple[int, ...]] = {}
        for first in range(0, len(digits), degree):
            at_once = digits[first : first + degree]
            count = len(at_once)
            for i, (weight, _) in enumerate(at_once):
                serving = [port for port in range(degree) if port % count == i]
                port_of[weight] = (serving[kind // count % len(serving)],)
            order += [at_once[(kind + i) % count] for i in range(count)]
        phases = phases_in(order)
        routes.append(
            PieceRoute(tuple(phases), tuple(port_of[phase.strides[0]] for phase in phases))
        )
    return routes


def _side_by_side(phases: list[Phase]) -> PieceRoute:
    """Every port serves every phase, with a stride of its own."""
    return PieceRoute(tuple(phases), tuple(tuple(range(len(p.strides))) for p in phases))


def _factors(servers: int, most: int) -> list[tuple[int, ...]]:
    """Nearly equal factors for every number of phases, none above `most`, in both orders."""
    found: list[tuple[int, ...]] = []
    for count in range(1, servers.bit_length() + 1):
        factor = 2
        while factor**count < servers:
            factor += 1
        if factor > most:
            continue
        factors = [factor] * count
        for i in range(count):
            while factors[i] > 1 and math.prod(factors) // factors[i] * (factors[i] - 1) >= servers:
                factors[i] -= 1
        kept = tuple(factor for factor in factors if factor > 1)
        for order in (kept, kept[::-1]):
            if order not in found:
                found.append(order)
    return found


def _exact_factors(servers: int, most: int) -> tuple[int, ...] | None:
    """A few factors of at most `most` with the product `servers`; None: there are none."""
    found = []
    left = servers
    for factor in range(most, 1, -1):
        while left % factor == 0:
            found.append(factor)
            left //= factor
    return tuple(found) if left == 1 else None


def _exchanged(
    start: tuple[float, PortPlan], costs: CircuitCosts, total_bytes: float
) -> tuple[float, PortPlan]:
    """The plan after changes of one port in one phase, as long as they make it faster."""
    seconds, plan = start
    better = True
    while better:
        better = False
        for phase in range(len(plan.routes[0].phases)):
            for port in range(plan.degree):
                ports = list(plan.routes[0].ports)
                serving = set(ports[phase]) ^ {port}
                if not 0 < len(serving) <= plan.pieces:
                    continue
                ports[phase] = tuple(sorted(serving))
                route = replace(plan.routes[0], ports=tuple(ports))
                tried = replace(plan, routes=(route,))
                tried_s = plan_seconds(tried, costs, total_bytes)
                if tried_s < seconds * (1 - 1e-9):
                    seconds, plan, better = tried_s, tried, True
    return seconds, plan
