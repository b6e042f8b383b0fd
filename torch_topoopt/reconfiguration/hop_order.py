"""The order of servers' sends over one topology, without slots.

In a schedule a chunk may leave a relay in the slot after its arrival. Ranks have no slots: a relay
that sends the newest chunk first waits for its end, and its circuit idles for the notification time
of a message, in every slot. So older chunks go first where there are some. Circuits stay equally
busy, and a chunk's hops keep their order.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Hop = tuple[int, int, int, int]  # sender, receiver, source and target of the chunk


def without_waiting(hops: Iterable[Hop]) -> list[Hop]:
    """The hops of one topology in an order that keeps circuits busy, each chunk's in sequence."""
    left: dict[tuple[int, int], list[Hop]] = defaultdict(list)  # per chunk, the next one last
    for hop in hops:
        left[hop[2:]].append(hop)
    waiting: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # circuit -> chunks
    came: dict[tuple[int, int], int] = {}  # chunk -> the first slot in which it may go
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
