"""Phases of collectives on circuits of one stride after another.

Server x sends to x + stride. A message has n blocks, block b for or from server b, or is one block.
Factors f1, f2, ... with a product of at least n write every distance between servers as digits, of
weight 1, f1, f1 f2, .... A phase handles one digit, over circuits of the stride that is its weight,
in any order of digits. Before a gathering phase a server has the blocks at distances whose later
digits are 0; they are passed on `factor` - 1 times. A reducing phase is the reverse. A chain passes
everything from server to server, and in a doubling phase servers add others' sums. Factors 2, 2, 2
are recursive doubling, one stride per step; a single factor n is a ring, which stays.

With `fan` every port has a stride of its own, a multiple of the weight, and a phase is one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
Digit = tuple[int, int]  # weight, factor


@dataclass(frozen=True)
class StridePart:
    """The sends of `senders` (None: all) in a step over a circuit of `stride`: the blocks x + o for
    each of `offsets`, modulo n, or the single block without any.

    `port` is the one used, with `fan`."""

    stride: int
    offsets: tuple[int, ...]
    senders: tuple[int, ...] | None = None
    port: int = 0

    @property
    def count(self) -> int:
        """Blocks."""
        return max(1, len(self.offsets))


@dataclass(frozen=True)
class Phase:
    """Steps of parts that are sent at once, over circuits of `strides`, one for each port with
    `fan`, else one for all. `blocks` of the message: n or 1. `kind` is gather, reduce, scatter,
    chain or double; in a chain a step has its own senders, so that pieces follow each other
    closely."""

    kind: str
    blocks: int
    strides: tuple[int, ...]
    steps: tuple[tuple[StridePart, ...], ...]

    @property
    def fan(self) -> bool:
        """Whether every port has a stride of its own."""
        return len(self.steps[0]) > 1

    @property
    def reduces(self) -> bool:
        """Whether receivers add what arrives to what they have."""
        return self.kind in ("reduce", "double")


def digits_of(servers: int, factors: tuple[int, ...]) -> list[Digit]:
    """(weight, factor) of each digit; raises ValueError for factors whose product is below n."""
    if math.prod(factors) < servers:
        raise ValueError(f"factors: {factors} reach {math.prod(factors)} servers, not {servers}")
    found = []
    weight = 1
    for factor in factors:
        if weight < servers:
            found.append((weight, min(factor, -(-servers // weight))))
        weight *= factor
    return found


def phases_of(collective: str, servers: int, digits: list[Digit], *, fan: bool) -> list[Phase]:
    """Phases that gather digit by digit in this order, and reduce or scatter in the reverse.

    Broadcast scatters blocks from server 0 before all gather them. Raises ValueError for an unknown
    collective.
    """
    gather = _gathered(servers, digits, fan=fan)
    if collective == "all_gather":
        return gather
    if collective not in COLLECTIVES:
        raise ValueError(f"collective: {collective!r} is not one of {', '.join(COLLECTIVES)}")
    down = _down(servers, digits, fan=fan, scattered=collective == "broadcast")
    return down if collective == "reduce_scatter" else down + gather


def chained_phases(servers: int, digits: list[Digit], *, fan: bool) -> list[Phase]:
    """Broadcast from server 0 as a whole: servers that have it pass it on, phase by phase."""
    found = []
    holders = [0]
    for weight, factor in digits:
        parts = []
        groups = _groups(servers, holders, weight, factor)
        for hop, new in enumerate(groups, 1):
            stride = hop * weight if fan else weight
            senders = tuple(x - stride for x in new)
            parts.append(StridePart(stride, (), senders, hop - 1 if fan else 0))
        holders = [*holders, *chain.from_iterable(groups)]
        found.append(_phase("chain", 1, parts, fan=fan))
    return found


def doubling_phases(servers: int, factors: tuple[int, ...]) -> list[Phase]:
    """AllReduce of whole messages: in each phase a server adds those of `factor` - 1 others.

    The product of `factors` must be `servers`, else ValueError: some would be added twice.
    """
    if math.prod(factors) != servers:
        raise ValueError(f"factors: {factors} make {math.prod(factors)} servers, not {servers}")
    return [
        _phase("double", 1, [StridePart(h * w, (), None, h - 1) for h in range(1, f)], fan=True)
        for w, f in digits_of(servers, factors)
    ]


def _phase(kind: str, blocks: int, parts: list[StridePart], *, fan: bool) -> Phase:
    """Parts in parallel with `fan`, else in sequence."""
    if fan:
        return Phase(kind, blocks, tuple(part.stride for part in parts), (tuple(parts),))
    return Phase(kind, blocks, (parts[0].stride,), tuple((part,) for part in parts))


def _groups(servers: int, window: list[int], weight: int, factor: int) -> list[list[int]]:
    """The window shifted by 1, 2, ... times the weight, as far as there are servers."""
    groups = [[far + hop * weight for far in window] for hop in range(1, factor)]
    kept = [[far for far in group if far < servers] for group in groups]
    return [group for group in kept if group]


def _gathered(servers: int, digits: list[Digit], *, fan: bool) -> list[Phase]:
    found = []
    window = [0]  # distances of the blocks that a server has
    for weight, factor in digits:
        parts = []
        groups = _groups(servers, window, weight, factor)
        for hop, new in enumerate(groups, 1):
            stride = hop * weight if fan else weight
            offsets = tuple(stride - far for far in new)  # behind the sender
            parts.append(StridePart(stride, offsets, None, hop - 1 if fan else 0))
        window = [*window, *chain.from_iterable(groups)]
        found.append(_phase("gather", servers, parts, fan=fan))
    return found


def _down(servers: int, digits: list[Digit], *, fan: bool, scattered: bool) -> list[Phase]:
    """Each server keeps the nearest of its windows and sends on the others, the farthest first."""
    windows = [[0]]
    for weight, factor in digits:
        groups = _groups(servers, windows[-1], weight, factor)
        windows.append([*windows[-1], *chain.from_iterable(groups)])
    found = []
    holders = [0]
    for (weight, factor), window in zip(reversed(digits), reversed(windows[:-1]), strict=True):
        parts = []
        for hop in range(1, factor):
            group = hop if fan else factor - hop
            offsets = tuple(o + group * weight for o in window if o + group * weight < servers)
            senders = None
            if scattered:
                on_chain = [x + p * weight for x in holders for p in range(1 if fan else hop)]
                senders = tuple(x for x in on_chain if offsets and x + offsets[0] < servers)
            if offsets and senders != ():
                stride = group * weight if fan else weight
                parts.append(StridePart(stride, offsets, senders, hop - 1 if fan else 0))
        holders += chain.from_iterable(_groups(servers, holders, weight, factor))
        found.append(_phase("scatter" if scattered else "reduce", servers, parts, fan=fan))
    return found
