"""Degree 1: every topology is one shift, server x to x + s, and each chunk stays on one topology.

A shift s moves a chunk v servers on in h hops where h s = v modulo n. So the cost of a set of
shifts is the sum over v of the fewest h of any of them ("To Reconfigure or Not to Reconfigure",
section 4.3). Chunks with equal h on one topology form a round, in which all links are busy in all
slots. So no slot is wasted, and only the set is to be chosen: a k-median problem. The paper takes
the shifts in one order for every d (`paper_shifts`); `best_shifts` chooses a set for each d.

Shifts with a common divisor with n form several cycles and reach only its multiples. Beyond Euler's
phi(n) topologies no others are left, and some smaller sets are better with them, too.
"""

from __future__ import annotations

import heapq
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule, circulant_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

MOST_SERVERS = 8191  # 4 n has to fit into 16 bits
MOST_EXACT = 18  # servers; up to here all sets are tried
MOST_EXCHANGED = 128  # servers; up to here sets are improved by exchanges
_EXCHANGES = 200  # at most, for one set


def shift_hops(servers: int) -> NDArray[np.int16]:
    """Entry [s, v]: hops by which shift s moves a chunk v servers on; 4 n if it never does."""
    if not 2 <= servers <= MOST_SERVERS:
        raise ValueError(f"servers: {servers} is not from 2 to {MOST_SERVERS}")
    table = np.full((servers, servers), 4 * servers, dtype=np.int16)
    for shift in range(1, servers):
        hops = np.arange(servers // gcd(servers, shift))
        table[shift, hops * shift % servers] = hops
    table[:, 0] = 0
    return table


def shift_slots(servers: int, shifts: Sequence[int]) -> int:
    """Slots of the schedule on these shifts; raises ValueError if a server is not reached."""
    hops = _fewest(servers, shifts)
    return int(hops.sum())


def paper_shifts(servers: int) -> list[int]:
    """All shifts in the paper's order, as far as it gives one: 1, n - 1, the others with a single
    cycle, ascending, and then those with several cycles."""
    first = [1, servers - 1] if servers > 2 else [1]
    others = (shift for shift in range(1, servers) if shift not in first)
    return first + sorted(others, key=lambda shift: (gcd(shift, servers) > 1, shift))


def best_shifts(servers: int, counts: Iterable[int] | None = None) -> dict[int, tuple[int, ...]]:
    """A set of shifts for each number of topologies in `counts` (None: all, from 1 to n - 1).

    The optimum of this family up to MOST_EXACT servers; up to MOST_EXCHANGED no exchange of one
    shift for another makes a set better; above that the sets are greedy. More topologies never
    take more slots. Raises ValueError for counts out of range.
    """
    wanted = range(1, servers) if counts is None else sorted(set(counts))
    if wanted and not 1 <= wanted[0] <= wanted[-1] < servers:
        raise ValueError(f"reconfigurations: {list(wanted)} are not all from 1 to {servers - 1}")
    if servers <= MOST_EXACT:
        optimal = _exact(servers)
        return {count: optimal[count] for count in wanted}
    table = shift_hops(servers)
    order = _greedy(table)
    if servers > MOST_EXCHANGED:
        return {count: tuple(order[:count]) for count in wanted}
    return _exchanged(table, order, wanted)


def shift_schedule(servers: int, shifts: Sequence[int]) -> AllToAllSchedule:
    """The schedule, with a barrier after every round; raises ValueError as `shift_slots`."""
    hops = np.stack([_fewest(servers, [shift], partial=True) for shift in shifts])
    fewest, on = hops.min(axis=0), hops.argmin(axis=0)
    if np.any(fewest[1:] >= 4 * servers):
        raise ValueError(_unreached(shifts, int(np.argmax(fewest[1:] >= 4 * servers)) + 1))
    rounds: list[tuple[int, ...]] = []
    rows: list[NDArray[np.int64]] = []
    slot = 0
    for i, shift in enumerate(shifts):
        targets = np.flatnonzero((on == i) & (np.arange(servers) > 0))
        targets = targets[np.argsort(fewest[targets], kind="stable")]
        for target in targets.tolist():
            step = np.arange(int(fewest[target]))
            row = np.zeros((len(step), 6), dtype=np.int64)
            row[:, 0], row[:, 1], row[:, 4] = slot + step, step * shift % servers, target
            rows.append(row)
            slot += len(step)
        rounds.append(tuple(fewest[targets].tolist()))
    sends = np.concatenate(rows).astype(np.int32)
    links = circulant_links(servers, [[shift] for shift in shifts])
    return AllToAllSchedule(links, tuple(rounds), sends, translated=True)


def _fewest(servers: int, shifts: Sequence[int], *, partial: bool = False) -> NDArray[np.int64]:
    fewest = np.full(servers, 4 * servers, dtype=np.int64)
    for shift in shifts:
        if not 0 < shift < servers:
            raise ValueError(f"shifts: {shift} is not from 1 to {servers - 1}")
        hops = np.arange(servers // gcd(servers, shift))
        at = hops * shift % servers
        fewest[at] = np.minimum(fewest[at], hops)
    if not partial and np.any(fewest >= 4 * servers):
        raise ValueError(_unreached(shifts, int(fewest.argmax())))
    return fewest


def _unreached(shifts: Sequence[int], distance: int) -> str:
    return f"shifts: {list(shifts)} never reach the server {distance} further on"


def _exact(servers: int) -> dict[int, tuple[int, ...]]:
    """The best set of each size, of all 2^(n - 1); the first in lexical order of bits."""
    table = shift_hops(servers)
    fewest = np.full((1, servers), 4 * servers, dtype=np.int16)
    sizes = np.zeros(1, dtype=np.int8)
    for shift in range(1, servers):  # row b of `fewest`: the set of the bits of b
        fewest = np.concatenate([fewest, np.minimum(fewest, table[shift])])
        sizes = np.concatenate([sizes, sizes + 1])
    slots = fewest[:, 1:].sum(axis=1, dtype=np.int64)
    found = {}
    for count in range(1, servers):
        of_size = np.flatnonzero(sizes == count)
        best = int(of_size[slots[of_size].argmin()])
        found[count] = tuple(s for s in range(1, servers) if best >> (s - 1) & 1)
    return found


def _greedy(table: NDArray[np.int16]) -> list[int]:
    """All shifts, each the one that saves most after those before it; ties to the smaller shift.

    The saving of a shift never grows, so one whose old saving is not the best need not be computed
    again (lazy evaluation of a submodular function).
    """
    servers = len(table)
    order, current = [1], table[1].copy()

    def saved(shift: int) -> int:
        return int(np.maximum(current - table[shift], 0).sum(dtype=np.int64))

    heap = [(-saved(shift), shift, 1) for shift in range(2, servers)]
    heapq.heapify(heap)
    while heap:
        _, shift, known = heap[0]
        if known < len(order):
            heapq.heapreplace(heap, (-saved(shift), shift, len(order)))
            continue
        heapq.heappop(heap)
        order.append(shift)
        np.minimum(current, table[shift], out=current)
    return order


def _exchanged(
    table: NDArray[np.int16], order: list[int], wanted: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """Greedy sets or, if better, the previous set plus a shift, after exchanges."""
    found: dict[int, tuple[int, ...]] = {}
    before: list[int] = []
    for count in range(1, wanted[-1] + 1):
        starts = [order[:count]]
        if before:
            current = table[before].min(axis=0)
            added = np.minimum(table, current)[1:].sum(axis=1, dtype=np.int64)
            added[np.array(before) - 1] = np.iinfo(np.int64).max
            starts.append([*before, int(added.argmin()) + 1])
        _, before = min(_exchange(table, start) for start in starts)
        if count in wanted:
            found[count] = tuple(sorted(before))
    return found


def _exchange(table: NDArray[np.int16], shifts: list[int]) -> tuple[int, list[int]]:
    """(slots, shifts) after repeated best exchanges of one shift, as long as they help."""
    shifts = list(shifts)
    slots = int(table[shifts].min(axis=0).sum(dtype=np.int64))
    for _ in range(_EXCHANGES):
        best = (slots, -1, -1)
        for i in range(len(shifts)):
            rest = shifts[:i] + shifts[i + 1 :]
            kept = table[rest].min(axis=0) if rest else np.full(len(table), 4 * len(table))
            after = np.minimum(table[1:], kept.astype(np.int16)).sum(axis=1, dtype=np.int64)
            j = int(after.argmin())
            best = min(best, (int(after[j]), i, j + 1))
        if best[0] >= slots:
            break
        slots, i, shift = best
        shifts[i] = shift
    return slots, shifts
