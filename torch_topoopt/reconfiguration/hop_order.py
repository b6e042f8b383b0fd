"""The order in which servers send chunks over one topology, when nobody counts slots.

In a schedule a chunk may leave a relay in the slot after the one in which it came. Ranks have no
slots: a relay that sends what has just come first waits for the end of it, and its circuit is idle
for as long as messages take to be noticed, in every slot. So what came a slot before goes first
where there is something else to send. Circuits stay as busy, and a chunk's hops keep their order.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Hop = tuple[int, int, int, int]  # sender, receiver, source and target of the chunk


def without_waiting(hops: Iterable[Hop]) -> list[Hop]:
    """The hops of one topology, a chunk's own in their order, in one that keeps circuits busy."""
    left: dict[tuple[int, int], list[Hop]] = defaultdict(list)  # of each chunk, the next one last
    for hop in hops:
        left[hop[2:]].append(hop)
    waiting: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # circuit -> chunks
    came: dict[tuple[int, int], int] = {}  # chunk -> the slot from which on it may go
    for chunk, own in left.items():
        own.reverse()
        waiting[own[-1][:2]].append(chunk)
        came[chunk] = -1
    ordered: list[Hop] = []
    slot = 0
    while waiting:
        sent = [
            min(chunks, key=lambda chunk: (came[chunk] >= slot, -len(left[chunk]), came[chunk]))
            for chunks in waiting.values()
        ]
        for circuit, chunk in zip(tuple(waiting), sent, strict=True):
            waiting[circuit].remove(chunk)
            if not waiting[circuit]:
                del waiting[circuit]
        slot += 1
        for chunk in sent:
            ordered.append(left[chunk].pop())
            if left[chunk]:
                came[chunk] = slot
                waiting[left[chunk][-1][:2]].append(chunk)
    return ordered
