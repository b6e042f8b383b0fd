"""Degree 1: every topology is one shift, server x to x + s, and each chunk stays on one topology.

A shift s moves a chunk that is v servers away in h hops where h s = v modulo n, so a set of shifts
takes, for each v, the fewest h that any of them has, summed over v ("To Reconfigure or Not to
Reconfigure", section 4.3). Those who share h on one topology make a round, in which all links are
busy in all slots, so no schedule of this family can have a slot to spare; what is to be chosen is
the set. This is a k-median problem: the paper takes the shifts in one order for every d
(`paper_shifts`), we choose a set for each d (`best_shifts`).

Shifts that share a divisor with n fall into several cycles and reach only its multiples; beyond
Euler's phi(n) topologies there are no others left, and some sets are better with them before that.
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
MOST_EXACT = 18  # servers up to which all sets are tried
MOST_EXCHANGED = 128  # servers up to which sets are improved by exchanges
_EXCHANGES = 200  # at most, for one set


def shift_hops(servers: int) -> NDArray[np.int16]:
    """Entry [s, v]: hops by which shift s moves a chunk v servers on; 4 n where it never does."""
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
    """All shifts in the order of the paper, as far as it gives one: 1, n - 1, the other ones that
    keep a single cycle, ascending, and then those that fall into several."""
    first = [1, servers - 1] if servers > 2 else [1]
    others = (shift for shift in range(1, servers) if shift not in first)
    return first + sorted(others, key=lambda shift: (gcd(shift, servers) > 1, shift))


def best_shifts(servers: int, counts: Iterable[int] | None = None) -> dict[int, tuple[int, ...]]:
    """For each number of topologies in `counts` (all, from 1 to n - 1, if None) a set of shifts.

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

    What a shift saves never grows, so one whose old figure is not the best need not be computed
    anew (lazy evaluation of a submodular function).
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
    """Greedy sets and, if better, the one before and a shift more, after exchanges."""
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
    """(slots, shifts) after the best exchanges of one for another, while there are better ones."""
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
