"""Rings for AllReduce groups without links of their own: consecutive members joined by routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.topology.finder.totient_perms import ring_order, totient_perms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def short_ring(members: Sequence[int], distances: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """A cyclic order of `members` with few hops in all, starting at the first member.

    `distances[a][b]` are the hops from server a to b, as coin change or breadth-first search counts
    them. The start is the best of the group's regular orders (TotientPerms over the members) and
    of the nearest-neighbour tour; then 2-opt: segments are reversed while that saves hops. Every
    choice breaks ties to the lower server, so the order is a function of the arguments.
    """
    members = tuple(members)
    size = len(members)
    if size < 4:
        orders = [ring_order(members, p) for p in totient_perms(size, duplex=False)] or [members]
        return min(orders, key=lambda order: (ring_hops(order, distances), order))
    cost = np.array([[distances[a][b] for b in members] for a in members], dtype=np.int64)
    positions = tuple(range(size))
    tours = [ring_order(positions, p) for p in totient_perms(size, duplex=False)]
    tours.append(_nearest_neighbour_tour(cost))
    best = min(tours, key=lambda tour: (_tour_hops(np.array(tour), cost), tour))
    return tuple(members[i] for i in _two_opt(np.array(best), cost))


def ring_hops(order: Sequence[int], distances: Sequence[Sequence[int]]) -> int:
    """Hops once around the ring."""
    return sum(distances[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True))


def _tour_hops(tour: NDArray[np.int64], cost: NDArray[np.int64]) -> int:
    return int(cost[tour, np.roll(tour, -1)].sum())


def _nearest_neighbour_tour(cost: NDArray[np.int64]) -> tuple[int, ...]:
    tour = [0]
    unvisited = set(range(1, len(cost)))
    while unvisited:
        last = tour[-1]
        tour.append(min(unvisited, key=lambda i: (cost[last, i], i)))
        unvisited.remove(tour[-1])
    return tuple(tour)


def _two_opt(tour: NDArray[np.int64], cost: NDArray[np.int64]) -> list[int]:
    """Reverses the segment that saves most hops, again and again, until none saves any.

    Costs may be different in the two directions; prefix sums of both give each segment's cost
    reversed. Position 0 stays in place.
    """
    size = len(tour)
    while True:
        following = np.roll(tour, -1)
        ahead = np.concatenate(([0], np.cumsum(cost[tour, following])))
        back = np.concatenate(([0], np.cumsum(cost[following, tour])))
        best_saving, best_segment = 0, (0, 0)
        for i in range(1, size - 1):
            j = np.arange(i + 1, size)
            before = ahead[j + 1] - ahead[i - 1]
            after = cost[tour[i - 1], tour[j]] + (back[j] - back[i]) + cost[tour[i], following[j]]
            k = int(np.argmax(before - after))
            saving = int((before - after)[k])
            if saving > best_saving:
                best_saving, best_segment = saving, (i, int(j[k]))
        if not best_saving:
            return [int(i) for i in tour]
        i, last = best_segment
        tour = tour.copy()
        tour[i : last + 1] = tour[i : last + 1][::-1]
