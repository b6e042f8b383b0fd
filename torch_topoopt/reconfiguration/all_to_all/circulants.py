"""Circulant topologies, on which chunks are carried over from one topology to the next.

`CirculantRoutes` counts the uses of each stride by the chunk for the server v further on. Routes
are shortest in the graph of all strides (stride_sets.py) and balance the strides of one topology.
The time on each topology is then exact: strides commute, so hops may be reordered freely. An edge
colouring of chunks against strides needs as many slots as the busiest stride has uses, or a chunk
has hops (Koenig). All servers act alike, so one server's chunks are planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule, circulant_links
from torch_topoopt.reconfiguration.all_to_all.stride_sets import distances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_PASSES = 12  # over all chunks, to balance strides


@dataclass(frozen=True, eq=False)
class CirculantRoutes:
    """`uses[v, topology, port]`: hops of a chunk for the server v further on over
    `strides[topology][port]`. A stride of 0 is a dark port."""

    strides: tuple[tuple[int, ...], ...]
    uses: NDArray[np.int32]

    @property
    def slots(self) -> int:
        """Slots of the schedule on these routes."""
        return sum(self.topology_slots())

    def topology_slots(self) -> list[int]:
        """Slots on each topology."""
        busiest = self.uses.sum(axis=0).max(axis=1)
        longest = self.uses.sum(axis=2).max(axis=0)
        slots: list[int] = np.maximum(busiest, longest).tolist()
        return slots


def circulant_routes(servers: int, degree: int, strides: Sequence[int]) -> CirculantRoutes:
    """Routes over all `strides`, `degree` of them on each topology, the busiest on the first.

    Raises ValueError if they do not reach every server.
    """
    hops = distances(servers, strides)
    if hops.max() >= 4 * servers:
        raise ValueError(
            f"strides: {list(strides)} never reach the server {int(hops.argmax())} further on"
        )
    uses = stride_uses(hops, strides)
    order = np.argsort(-uses.sum(axis=0), kind="stable")
    count = -(-len(strides) // degree)
    padded = np.zeros(count * degree, dtype=np.int64)
    padded[: len(strides)] = np.array(strides)[order]
    table = np.zeros((servers, count * degree), dtype=np.int32)
    table[:, : len(strides)] = uses[:, order]
    if degree > 1:
        _balance(hops, padded, table, degree)
    shape = (count, degree)
    return CirculantRoutes(
        tuple(map(tuple, padded.reshape(shape).tolist())), table.reshape(servers, *shape)
    )


def circulant_schedule(routes: CirculantRoutes) -> AllToAllSchedule:
    """The schedule: no barriers, each topology as long as its busiest stride needs."""
    n, _, degree = routes.uses.shape
    pieces, first = [], 0
    for i, slots in enumerate(routes.topology_slots()):
        uses = routes.uses[:, i]
        if degree == 1:
            chunk = np.repeat(np.arange(n), uses[:, 0])
            slot, port = np.arange(len(chunk)), np.zeros(len(chunk), dtype=np.int64)
        else:
            chunk, slot, port = _coloured(uses, slots)
        step = np.array(routes.strides[i])[port]
        pieces.append(np.stack([chunk, slot + first, port, step], axis=1))
        first += slots
    moves = np.concatenate(pieces)
    moves = moves[np.lexsort((moves[:, 1], moves[:, 0]))]
    chunk, slot, port, step = moves.T
    gone = np.cumsum(step) - step  # over all earlier chunks, too
    start = np.searchsorted(chunk, chunk)
    sender = (gone - gone[start]) % n
    none = np.zeros_like(slot)
    sends = np.stack([slot, sender, port, none, chunk, none], axis=1).astype(np.int32)
    rounds = tuple((slots,) for slots in routes.topology_slots())
    return AllToAllSchedule(circulant_links(n, routes.strides), rounds, sends, translated=True)


def stride_uses(hops: NDArray[np.int32], strides: Sequence[int]) -> NDArray[np.int32]:
    """Entry [v, i]: uses of stride i on a shortest route to the server v further on, if there is
    one: `hops` are its `distances`. The last hop is over the stride least used so far."""
    n, by = len(hops), np.array(strides)
    uses = np.zeros((n, len(strides)), dtype=np.int32)
    load = np.zeros(len(strides), dtype=np.int64)
    for v in np.argsort(hops, kind="stable")[1:].tolist():
        if hops[v] >= 4 * n:
            break
        before = (v - by) % n
        last = np.flatnonzero(hops[before] == hops[v] - 1)
        j = int(last[load[last].argmin()])
        uses[v] = uses[before[j]]
        uses[v, j] += 1
        load += uses[v]
    return uses


def _balance(
    hops: NDArray[np.int32], strides: NDArray[np.int64], uses: NDArray[np.int32], degree: int
) -> None:
    """Replaces routes one by one by equally short ones, to balance the strides of a topology.

    Minimises the sum of squared deviations of each stride's load from its topology's mean.
    """
    n = len(hops)
    load = uses.sum(axis=0, dtype=np.float64)
    order = np.argsort(-hops, kind="stable").tolist()

    def excess(loads: NDArray[np.float64]) -> NDArray[np.float64]:
        by_topology = loads.reshape(*loads.shape[:-1], -1, degree)
        spread = by_topology - by_topology.mean(axis=-1, keepdims=True)
        sums: NDArray[np.float64] = (spread**2).sum(axis=(-1, -2))
        return sums

    for _ in range(_PASSES):
        changed = False
        for v in order[:-1]:
            before = (v - strides) % n
            last = np.flatnonzero((hops[before] == hops[v] - 1) & (strides > 0))
            others = uses[before[last]].copy()
            others[np.arange(len(last)), last] += 1
            costs = excess(load - uses[v] + others)
            j = int(costs.argmin())
            if costs[j] < excess(load) - 1e-9:
                load += others[j] - uses[v]
                uses[v] = others[j]
                changed = True
        if not changed:
            return


def _coloured(
    uses: NDArray[np.int32], slots: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(chunk, slot, port) of every hop: no chunk and no port twice in a slot.

    Koenig's construction: a hop takes a slot in which its chunk and its port are free. If there is
    none, it swaps slots along a path of hops that alternates between a slot free at one end and one
    free at the other.
    """
    n, degree = uses.shape
    chunk_at = [[-1] * slots for _ in range(degree)]  # by port and slot
    port_at: list[dict[int, int]] = [{} for _ in range(n)]  # by chunk and slot
    free = [set(range(slots)) for _ in range(degree)]

    def put(chunk: int, port: int, slot: int) -> None:
        chunk_at[port][slot] = chunk
        port_at[chunk][slot] = port
        free[port].discard(slot)

    def exchange(port: int, here: int, there: int) -> None:
        """Frees slot `here` at the port, whose slot `there` is free, by swapping the two along
        the path from it."""
        path = []
        slot, other = here, there
        while (chunk := chunk_at[port][slot]) >= 0:
            path.append((chunk, port, slot, other))
            following = port_at[chunk].get(other, -1)
            if following < 0:
                break
            path.append((chunk, following, other, slot))
            port = following
        for chunk, port, slot, _ in path:
            chunk_at[port][slot] = -1
            port_at[chunk].pop(slot, None)
            free[port].add(slot)
        for chunk, port, _, other in path:
            put(chunk, port, other)

    for chunk in np.argsort(-uses.sum(axis=1), kind="stable").tolist():
        for port in np.argsort(-uses[chunk], kind="stable").tolist():
            for _ in range(int(uses[chunk, port])):
                slot = next((s for s in free[port] if s not in port_at[chunk]), -1)
                if slot < 0:
                    slot = next(s for s in range(slots) if s not in port_at[chunk])
                    exchange(port, slot, next(iter(free[port])))
                put(chunk, port, slot)
    rows = [(c, s, p) for c in range(n) for s, p in port_at[c].items()]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]
