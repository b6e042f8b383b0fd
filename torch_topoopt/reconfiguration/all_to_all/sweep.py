"""A strategy for every number of topologies.

Mode "best" minimises slots: circulants whose chunks are carried over (circulants.py). For one
topology of two or more circuits, it also tries the generalised Kautz graph with balanced routes or
a linear program's. Mode "paper" is "To Reconfigure or Not to Reconfigure": single cycles shifted in
one order, or rounds and contraction on both bases (rounds.py); a chunk stays on one topology.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt.reconfiguration.all_to_all.bounds import (
    carried_bound_slots,
    uncarried_bound_slots,
)
from torch_topoopt.reconfiguration.all_to_all.circulants import (
    circulant_routes,
    circulant_schedule,
)
from torch_topoopt.reconfiguration.all_to_all.forwarding import forwarded
from torch_topoopt.reconfiguration.all_to_all.kautz_links import kautz_links
from torch_topoopt.reconfiguration.all_to_all.link_routes import balanced_routes
from torch_topoopt.reconfiguration.all_to_all.optimal_routes import (
    MOST_VARIABLES,
    optimal_schedule,
    variables,
)
from torch_topoopt.reconfiguration.all_to_all.rounds import paper_schedules
from torch_topoopt.reconfiguration.all_to_all.single_cycles import (
    best_shifts,
    paper_shifts,
    shift_schedule,
)
from torch_topoopt.reconfiguration.all_to_all.stride_sets import StrideSets
from torch_topoopt.reconfiguration.all_to_all.verification import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

MODES = ("best", "paper")
MOST_SERVERS = 4096
MOST_IN_ROUNDS = 256  # servers of mode "paper" with two circuits or more
_RESTARTS = 4  # of the search for strides,
_RESTARTED = 16  # at so many of the first numbers of topologies
_MOST_SHIFTED = 128  # servers; up to here chosen shifts are a further start


@dataclass(frozen=True, eq=False)
class Strategy:
    """A verified schedule on `base`: "ring", "cycles" (shifted), "circulant" or "kautz"; for
    unequal sizes also "greedy" and "permutations" (uneven.py).

    `lower_bound_slots` holds where no chunk is carried from one topology to the next (Theorem 1),
    `carried_bound_slots` for every schedule.
    """

    base: str
    schedule: AllToAllSchedule
    lower_bound_slots: int
    carried_bound_slots: int

    @property
    def reconfigurations(self) -> int:
        """d, with the first topology."""
        return self.schedule.reconfigurations

    @property
    def slots(self) -> int:
        """Slots of all topologies."""
        return self.schedule.slots


def most_topologies(servers: int, degree: int) -> int:
    """The number with which every server has had a circuit to every other."""
    return -(-(servers - 1) // degree)


def check_size(servers: int, degree: int, mode: str) -> None:
    """Raises ValueError for an unsupported size."""
    if mode not in MODES:
        raise ValueError(f"mode: {mode!r} is not one of {', '.join(MODES)}")
    if not 2 <= servers <= MOST_SERVERS:
        raise ValueError(f"servers: {servers} is not from 2 to {MOST_SERVERS}")
    if not 1 <= degree < servers:
        raise ValueError(f"degree: {degree} is not from 1 to {servers - 1}, servers - 1")
    if mode == "paper" and degree > 1 and servers > MOST_IN_ROUNDS:
        raise ValueError(
            f"servers: {servers} is more than {MOST_IN_ROUNDS}, the most of mode paper with "
            "several circuits per server, which packs flow by flow; use mode best"
        )


def strategies(
    servers: int, degree: int, *, mode: str = "best", first: int = 1, seed: int = 0
) -> Iterator[Strategy]:
    """A verified strategy for each number of topologies from `first` on, one by one.

    Each takes no more slots than those before it. Raises ValueError as `check_size`, and for a
    `first` that is not from 1 to `most_topologies`.
    """
    check_size(servers, degree, mode)
    most = most_topologies(servers, degree)
    if not 1 <= first <= most:
        raise ValueError(
            f"reconfigurations: {first} is not from 1 to {most}: with {most} topologies of degree "
            f"{degree} each of {servers} servers has had a circuit to every other"
        )
    found = _best(servers, degree, first, seed) if mode == "best" else _paper(servers, degree)
    for base, schedule in found:
        d = schedule.reconfigurations
        if d < first:
            continue
        verify(schedule)
        yield Strategy(
            base,
            schedule,
            uncarried_bound_slots(servers, degree, d),
            carried_bound_slots(servers, degree, d),
        )


def _best(
    servers: int, degree: int, first: int, seed: int
) -> Iterator[tuple[str, AllToAllSchedule]]:
    sets = StrideSets(servers, seed=seed)
    shifts = best_shifts(servers) if degree == 1 and servers <= _MOST_SHIFTED else {}
    before = None
    for d in range(first, most_topologies(servers, degree) + 1):
        count = min(d * degree, servers - 1)
        candidates = sets.several(count, restarts=_RESTARTS if d - first < _RESTARTED else 0)
        if count in shifts:
            candidates.append(shifts[count])
        if before is not None:
            old = [stride for ports in before.strides for stride in ports if stride]
            candidates.append(sets.extended(old, count))
        routes = min(
            (circulant_routes(servers, degree, strides) for strides in candidates),
            key=lambda found: found.slots,
        )
        before = routes
        base, schedule = "circulant", circulant_schedule(routes)
        if d == 1 and degree == 1:
            base = "ring"
        elif d == 1:
            kautz = _on_kautz(servers, degree)
            if kautz.slots < schedule.slots:
                base, schedule = "kautz", kautz
        yield base, schedule


def _on_kautz(servers: int, degree: int) -> AllToAllSchedule:
    """The better of balanced routes and, on few servers, those of a linear program."""
    links = kautz_links(servers, degree)
    balanced = forwarded(balanced_routes(links))
    if variables(servers, degree, 1) > MOST_VARIABLES:
        return balanced
    optimal, _ = optimal_schedule(links[None], balanced.chunk_counts())
    return min(balanced, replace(optimal, counts=None), key=lambda schedule: schedule.slots)


def _paper(servers: int, degree: int) -> Iterator[tuple[str, AllToAllSchedule]]:
    if degree == 1:
        order = paper_shifts(servers)
        for d in range(1, servers):
            yield "ring" if d == 1 else "cycles", shift_schedule(servers, order[:d])
        return
    bases = ("circulant", "kautz")
    both = [paper_schedules(servers, degree, base) for base in bases]
    kept: list[AllToAllSchedule | None] = [None, None]
    for d in range(1, most_topologies(servers, degree) + 1):
        for i, schedules in enumerate(both):
            kept[i] = next(schedules, None)
        found = [(s.slots, i, s) for i, s in enumerate(kept) if s is not None]
        if not found or found[0][2].reconfigurations != d:
            return
        _, i, schedule = min(found, key=lambda one: one[:2])
        yield bases[i], schedule
