"""Deadlock-free forwarding: which virtual channel of a link each hop of each route uses.

Where relays store messages in buffers that can be full, a message keeps the buffer at the end of
one link while it waits for a buffer at the end of the next. If these dependencies form a
cycle, all messages of the cycle can wait for ever; without a cycle none can (Dally and Seitz,
IEEE Trans. Computers C-36(5), 1987, theorem 1). A virtual channel is a buffer of its own for part
of the routes of a link. The ends must take what arrives, so a ring AllReduce, which reads a message
before it sends the next one, adds no dependency between its hops.

The backend of this project needs none of this, as its relays never refuse a message; simulators
with finite buffers and other networks that a plan is exported to do.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch_topoopt.plan import Pair

Way = tuple[int, ...]  # the servers of a route
Channel = tuple[int, int, int]  # source, target, virtual channel


@dataclass(frozen=True)
class ChannelPlan:
    """`count` virtual channels per link; `by_way[servers of a route][i]` is that of hop i.

    `kept`: every route stays on one channel (a service level); else it goes to the next channel at
    some hops (a dateline).
    """

    count: int
    by_way: dict[Way, tuple[int, ...]]
    kept: bool


def dependency_cycle(
    by_way: Mapping[Way, Sequence[int]],
) -> tuple[Channel, ...] | None:
    """A cycle of channels each of which some route holds while it asks for the next; None if none.

    `by_way[servers of a route]` lists the virtual channel of each hop; all 0 where links have one.
    """
    after: dict[Channel, set[Channel]] = {}
    for way, channels in by_way.items():
        hops = [(a, b, c) for (a, b), c in zip(itertools.pairwise(way), channels, strict=True)]
        for before, following in itertools.pairwise(hops):
            after.setdefault(before, set()).add(following)
    return _cycle(after)


def check_channels(by_way: Mapping[Way, Sequence[int]]) -> None:
    """Raises ValueError, naming the cycle, if messages on these routes and channels can deadlock.

    Also if a route has not as many channels as hops.
    """
    for way, channels in by_way.items():
        if len(channels) != len(way) - 1:
            raise ValueError(f"channels: {len(channels)} for the {len(way) - 1} hops of {way}")
    cycle = dependency_cycle(by_way)
    if cycle:
        names = [f"{a}->{b}" + (f" (channel {c})" if c else "") for a, b, c in cycle]
        raise ValueError(f"routes: can deadlock on the links {', '.join(names)}, and so on round")


def virtual_channels(ways: Iterable[Way]) -> ChannelPlan:
    """Channels on which messages on these routes (lists of servers) cannot deadlock, few of them.

    Two constructions, of which the one with fewer channels is taken, and the first if equal:
    - Every route stays on one channel: the lowest one whose dependencies stay free of cycles with
      it, as in LASH (Skeie, Lysne, Theiss, IPDPS 2002); routes in order of their length, in both
      orders.
    - All links are put in one order; a route goes to the next channel where the next link is not
      later in it. (Channel, place in the order) then grows along every route. The order is that of
      the first layer above, so most routes never change.
    Routes of one hop depend on nothing and use channel 0.
    """
    distinct = sorted(set(ways), key=lambda way: (len(way), way))
    long = [way for way in distinct if len(way) > 2]
    layered = min(
        (_layered(order) for order in (long, long[::-1])),
        key=lambda layers: len(layers),
    )
    by_way = {way: (0,) * (len(way) - 1) for way in distinct}
    if not layered:
        return ChannelPlan(1, by_way, True)
    if len(layered) > 1:
        place = layered[0].places()
        climbing = {way: _climbing(way, place) for way in long}
        count = 1 + max(channels[-1] for channels in climbing.values())
        if count < len(layered):
            return ChannelPlan(count, {**by_way, **climbing}, False)
    for channel, layer in enumerate(layered):
        by_way.update({way: (channel,) * (len(way) - 1) for way in layer.ways})
    return ChannelPlan(len(layered), by_way, True)


class _Layer:
    """Routes whose dependencies form no cycle: links are nodes, and `_reach` is the closure.

    Sets of links are the bits of integers, so asking whether a dependency closes a cycle is one
    test, and adding one is an `or` for every link that reaches its start. A dependency that closes
    a cycle once does so for ever.
    """

    def __init__(self, number: dict[Pair, int]) -> None:
        self.ways: list[Way] = []
        self._number = number
        self._reach = [1 << i for i in range(len(number))]  # itself and all after it
        self._known: set[tuple[int, int]] = set()
        self._closing: set[tuple[int, int]] = set()

    def add(self, way: Way, dependencies: Sequence[tuple[int, int]]) -> bool:
        """Takes the route unless that would close a cycle; whether it did."""
        if not self._known.issuperset(dependencies):
            if not self._closing.isdisjoint(dependencies):
                return False
            added = [d for d in dependencies if d not in self._known]
            saved = self._reach  # each alone may close no cycle, and all together one
            for dependency in added:
                before, after = dependency
                if saved[after] >> before & 1:
                    self._closing.add(dependency)
                if self._reach[after] >> before & 1:
                    self._reach = saved
                    return False
                self._join(before, after)
            self._known.update(added)
        self.ways.append(way)
        return True

    def _join(self, before: int, after: int) -> None:
        reached = self._reach[after]
        if self._reach[before] | reached == self._reach[before]:
            return
        bit = 1 << before
        self._reach = [r | reached if r & bit else r for r in self._reach]

    def places(self) -> dict[Pair, int]:
        """All links in an order in which every dependency of this layer goes forward."""
        # Links that reach more come first: a link reaches itself and all that later ones reach.
        order = sorted(self._number, key=lambda pair: (-self._size(pair), self._number[pair]))
        return {pair: place for place, pair in enumerate(order)}

    def _size(self, pair: Pair) -> int:
        return self._reach[self._number[pair]].bit_count()


def _layered(ways: Sequence[Way]) -> list[_Layer]:
    number: dict[Pair, int] = {}
    for way in ways:
        for pair in itertools.pairwise(way):
            number.setdefault(pair, len(number))
    layers: list[_Layer] = []
    for way in ways:
        links = [number[pair] for pair in itertools.pairwise(way)]
        dependencies = list(itertools.pairwise(links))
        if not any(layer.add(way, dependencies) for layer in layers):
            layers.append(_Layer(number))
            layers[-1].add(way, dependencies)
    return layers


def _climbing(way: Way, place: Mapping[Pair, int]) -> tuple[int, ...]:
    """The channel of each hop: one more where the next link is not later in the order."""
    channels = [0]
    for before, after in itertools.pairwise(itertools.pairwise(way)):
        channels.append(channels[-1] + (place[after] <= place[before]))
    return tuple(channels)


def _cycle(after: Mapping[Channel, Iterable[Channel]]) -> tuple[Channel, ...] | None:
    """A cycle in a directed graph, by depth-first search without recursion."""
    done: set[Channel] = set()
    for start in sorted(after):
        if start in done:
            continue
        trail = [start]
        on_trail = {start}
        ahead = [iter(sorted(after[start]))]
        while trail:
            following = next(ahead[-1], None)
            if following is None:
                done.add(trail[-1])
                on_trail.discard(trail.pop())
                ahead.pop()
            elif following in on_trail:
                return tuple(trail[trail.index(following) :])
            elif following not in done:
                trail.append(following)
                on_trail.add(following)
                ahead.append(iter(sorted(after.get(following, ()))))
    return None
