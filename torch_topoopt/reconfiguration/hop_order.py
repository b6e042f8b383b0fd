"""The order of servers' sends over one topology, without slots.

In a schedule a chunk may leave a relay in the slot after its arrival. Ranks have no slots: a relay
that sends the newest chunk first waits for its end, and its circuit idles for the notification time
of a message, in every slot. So older chunks go first where there are some. Circuits stay equally
busy, and a chunk's hops keep their order.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Hop = tuple[int, int, int, int, int]  # sender, receiver; source, target and part of the chunk


def without_waiting(hops: Iterable[Hop]) -> list[Hop]:
    """The hops of one topology in an order that keeps circuits busy, each chunk's in sequence.

    In each slot a circuit takes the chunk with the most hops to go among those that have waited for
    a slot, then among the others.
    """
    left: dict[tuple[int, int, int], list[Hop]] = defaultdict(list)  # per chunk, the next one last
    for hop in hops:
        left[hop[2:]].append(hop)
    # Per circuit a heap of (-hops to go, slot of arrival, number, hops), and the newest arrivals.
    waiting: dict[tuple[int, int], list[tuple[int, int, int, list[Hop]]]] = defaultdict(list)
    newest: dict[tuple[int, int], list[tuple[int, int, int, list[Hop]]]] = defaultdict(list)
    number = count()
    for own in left.values():
        own.reverse()
        heappush(waiting[own[-1][:2]], (-len(own), -1, next(number), own))
    ordered: list[Hop] = []
    slot = 0
    while waiting or newest:
        sent = [heappop(chunks)[-1] for chunks in waiting.values()]
        for circuit, chunks in newest.items():
            if circuit not in waiting:
                chunks.sort()
                sent.append(chunks.pop(0)[-1])
            for chunk in chunks:
                heappush(waiting[circuit], chunk)
        newest.clear()
        waiting = defaultdict(list, {at: chunks for at, chunks in waiting.items() if chunks})
        slot += 1
        for own in sent:
            ordered.append(own.pop())
            if own:
                newest[own[-1][:2]].append((-len(own), slot, next(number), own))
    return ordered
