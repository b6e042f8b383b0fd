"""Rings through a perfect matching, so that AllReduce uses the odd port of every server.

A duplex ring takes two ports of a server, so an odd degree leaves one, and the cables of these
ports are a matching. A ring over an even number of servers is itself two perfect matchings, laid in
turn. If the union of the third with each of these two is again one cycle, the matching *crosses*
the ring: three ports per server then carry three rings, each in both directions, and each cable is
on two of them. With half of a plain ring's share for each, all three cables are equally busy, and
AllReduce reaches the bound of three ports, 2 (k - 1) / k of its bytes over all of them (K4, where
all three matchings are of this kind, is the smallest example).

In graph theory these are cubic graphs with a perfectly Hamiltonian 3-edge-colouring. They exist for
every even number of servers; circulant ones, strides p and n / 2, for n = 4 and n = 2 modulo 4.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from torch_topoopt.plan import Group, Link, Pair, Ring
from torch_topoopt.plan.network import hops_around
from torch_topoopt.topology.routing.hop_counts import hop_matrix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

Order = tuple[int, ...]

_TRIES = 16  # matchings to choose the shortest paths from, fewer of more than 256 servers
_STEPS = 40  # exchanges per server in one try


def group_of_rings(
    servers: Sequence[int], orders: Sequence[Order], *, duplex: bool, crossed: Sequence[Order] = ()
) -> Group:
    """The group with a ring per order; on duplex, each of three servers or more in both directions.

    Shares are equal, but for the last order and those of `crossed`, which divide cables with it
    (`crossed_orders`): they have one half each.
    """
    weights = [(order, 2) for order in orders]
    if crossed:
        weights[-1] = (orders[-1], 1)
        weights += [(order, 1) for order in crossed]
    if duplex and len(servers) > 2:
        weights = [(o, w) for order, w in weights for o in (order, (order[0], *order[:0:-1]))]
    total = sum(weight for _, weight in weights)
    return Group(tuple(servers), tuple(Ring(order, weight / total) for order, weight in weights))


def crossed_orders(order: Order, matching: Iterable[Pair]) -> tuple[Order, ...]:
    """The two rings of `matching` with either half of the ring `order`; () if it does not cross it.

    `matching` are cables between servers of `order`, in any order. Both rings begin where `order`
    does.
    """
    partner = _partners(matching)
    if partner is None or len(order) % 2 or len(order) < 4 or partner.keys() != set(order):
        return ()
    found = tuple(_cycle(order[0], half, partner) for half in _halves(order))
    return found if all(len(ring) == len(order) for ring in found) else ()


def crossing_matching(
    order: Order, joined: Collection[Pair], *, start: Iterable[Pair] | None = None
) -> tuple[Pair, ...]:
    """A perfect matching that crosses the ring `order`, as pairs (lower, higher), sorted; () if
    none was found, as for an odd number of servers.

    No pair of `joined` (ascending) is in it. With `start`, another perfect matching, as few pairs
    of that are exchanged as a greedy search needs. Without: opposite servers of the ring where that
    crosses it, else the one with the least mean hops of some that are searched. The same arguments
    give the same result.
    """
    size = len(order)
    if size < 4 or size % 2:
        return ()
    joined = {*joined, *map(_ascending, hops_around(order))}
    if start is not None:
        found = _repaired(order, dict(_partners(start) or {}), joined, random.Random(0))
        return found or ()
    opposite = tuple(sorted(_ascending((order[i], order[i + size // 2])) for i in range(size // 2)))
    if joined.isdisjoint(opposite) and crossed_orders(order, opposite):
        return opposite
    best: tuple[float, tuple[Pair, ...]] | None = None
    for seed in range(max(1, min(_TRIES, 16 * 256 // size))):
        chooser = random.Random(seed)
        shuffled = list(order)
        chooser.shuffle(shuffled)
        partner = _partners(zip(shuffled[::2], shuffled[1::2], strict=True))
        found = _repaired(order, partner or {}, joined, chooser)
        if found is not None:
            cost = _mean_hops(order, joined | set(found))
            best = min(best or (cost, found), (cost, found))
    return best[1] if best else ()


def crossing_of(orders: Sequence[Order], matching: Sequence[Pair]) -> tuple[int, tuple[Order, ...]]:
    """The index of the last of `orders` that `matching` crosses, and the two resulting rings;
    (-1, ()) if none."""
    for i in reversed(range(len(orders))):
        if crossed := crossed_orders(orders[i], matching):
            return i, crossed
    return -1, ()


def spare_cables(links: Iterable[Link], orders: Iterable[Order]) -> list[Pair]:
    """The cables of duplex `links` that no ring uses, as pairs (lower, higher)."""
    cables = Counter((link.source, link.target) for link in links if link.source < link.target)
    for order in orders:
        cables.subtract(set(map(_ascending, hops_around(order))))
    return sorted(cables.elements())


def complete_rings(servers: int) -> tuple[tuple[Order, ...], tuple[Pair, ...]]:
    """All cables of a complete graph of an even number of servers, 4 or more: rings, and a matching
    that crosses the last of them.

    The rotational one-factorisation: in matching i, server n - 1 is joined to i, and two others
    whose numbers add up to 2 i modulo n - 1. Two of them are one cycle where the difference of
    their numbers is coprime to n - 1, as one and two are. Raises ValueError for other numbers.
    """
    if servers < 4 or servers % 2:
        raise ValueError(f"servers: {servers} is not an even number of at least 4")
    last = servers - 1

    def matching(i: int) -> dict[int, int]:
        partner = {s: (2 * i - s) % last for s in range(last)}
        return {**partner, i: last, last: i}

    rings = [_cycle(0, matching(i), matching(i + 1)) for i in (*range(3, servers - 2, 2), 0)]
    crossing = {_ascending(pair) for pair in matching(2).items()}
    return tuple(rings), tuple(sorted(crossing))


def _repaired(
    order: Order, partner: dict[int, int], joined: Collection[Pair], chooser: random.Random
) -> tuple[Pair, ...] | None:
    """`partner` with pairs exchanged until it crosses the ring and has none of `joined`.

    A step takes two pairs apart and joins their servers the other way if there are not more cycles,
    and pairs of `joined`, than before.
    """
    if partner.keys() != set(order):
        return None
    halves = _halves(order)

    def faults() -> int:
        taken = sum(_ascending(pair) in joined for pair in partner.items())
        return taken + sum(_cycles(half, partner) - 1 for half in halves)

    now = faults()
    for _ in range(_STEPS * len(order)):
        if not now:
            return tuple(sorted({_ascending(pair) for pair in partner.items()}))
        a, c = chooser.sample(order, 2)
        b, d = partner[a], partner[c]
        if b == c:
            continue
        partner.update({a: c, c: a, b: d, d: b})
        after = faults()
        if after <= now:
            now = after
        else:
            partner.update({a: b, b: a, c: d, d: c})
    return None


def _halves(order: Order) -> tuple[dict[int, int], dict[int, int]]:
    """The two perfect matchings that the ring of an even number of servers is made of."""
    cables = list(hops_around(order))
    first, second = _partners(cables[::2]), _partners(cables[1::2])
    assert first is not None
    assert second is not None
    return first, second


def _partners(matching: Iterable[Pair]) -> dict[int, int] | None:
    """Every server's partner; None if a server has two."""
    partner: dict[int, int] = {}
    for a, b in matching:
        if a in partner or b in partner or a == b:
            return None
        partner[a], partner[b] = b, a
    return partner


def _cycle(first: int, one: dict[int, int], other: dict[int, int]) -> Order:
    """The servers on the cycle of two matchings through `first`."""
    cycle = [first]
    at = other[one[first]]
    cycle.append(one[first])
    while at != first:
        cycle += [at, one[at]]
        at = other[one[at]]
    return tuple(cycle)


def _cycles(one: dict[int, int], other: dict[int, int]) -> int:
    left = set(one)
    count = 0
    while left:
        left.difference_update(_cycle(next(iter(left)), one, other))
        count += 1
    return count


def _mean_hops(order: Order, pairs: Iterable[Pair]) -> float:
    place = {server: i for i, server in enumerate(order)}
    links = [
        link
        for a, b in pairs
        if a in place and b in place
        for link in (Link(place[a], 0, place[b], 0), Link(place[b], 0, place[a], 0))
    ]
    return float(hop_matrix(len(order), links).mean())


def _ascending(pair: Pair) -> Pair:
    return (min(pair), max(pair))
