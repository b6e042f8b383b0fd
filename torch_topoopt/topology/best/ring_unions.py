"""Rings that need not be circulant: unions of Hamiltonian cycles with few hops between servers.

The C++ annealing (`csrc/topology/ring_search.h`) changes rings in small steps and keeps each a
ring. Its quality depends mostly on the required symmetry. Without symmetry the space is too large;
with full symmetry (circulant networks, symmetry n) there are few networks, all of them poor. In
between are small search spaces with networks close to the Moore bound. The best symmetry depends on
n, so all divisors of n compete, and each round gives fewer of them more work. If a generalised
Kautz network is a union of rings, the search also starts from it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.topology.best.kautz_rings import has_kautz_rings, kautz_rings
from torch_topoopt.topology.measures.figures import moore_bound_hops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Pair
    from torch_topoopt.topology.finder.crossed_rings import Order


WORK_PER_S = 4_000_000_000  # word operations of one core, as a fixed constant
_HOT, _COLD = 1.0, 0.05  # temperatures, in hops per source
_SHARE_OF_KAUTZ = 0.25  # part of the work for cutting a Kautz network, and again for changing it
_SHARE_OF_LAST = 0.4  # part of the work that the last round, of one symmetry, gets


@dataclass(frozen=True)
class RingUnion:
    """Orders of the servers, one per ring (duplex: for both directions), and links beside them.

    `cost` is the sum of the hops of all ordered pairs, or of the hops times their weights.
    """

    rings: tuple[Order, ...]
    links: tuple[Pair, ...]
    cost: int


def search_rings(servers: int, rings: int, *, duplex: bool, seed: int, work: int) -> RingUnion:
    """`rings` rings over all servers, with few hops in the mean over all ordered pairs.

    `work` is counted, not measured, so that the same arguments give the same rings: one unit is an
    operation on a word of 64 sources, of which `WORK_PER_S` are called a second. Twice the work
    anneals twice as slowly; a network at the Moore bound ends it, for none is better. Every ring
    takes two ports of each server on duplex and one on simplex.

    Raises ValueError for fewer than two servers, fewer than one ring, or negative work.
    """
    if servers < 2:
        raise ValueError(f"servers: {servers} is not at least 2")
    if rings < 1:
        raise ValueError(f"rings: {rings} is not at least 1")
    if work < 0:
        raise ValueError(f"work: {work} is negative")
    contenders = [s for s in range(1, servers + 1) if servers % s == 0]
    degree = rings * (2 if duplex else 1)
    enough = round(moore_bound_hops(servers, degree, duplex=duplex) * servers * (servers - 1))
    rounds = math.ceil(math.log2(len(contenders)))
    best: RingUnion | None = None
    if not duplex and has_kautz_rings(servers, rings):
        chooser = random.Random(f"{seed} kautz")
        part = int(work * _SHARE_OF_KAUTZ)
        orders = kautz_rings(servers, rings, chooser, part)
        if orders is not None:
            best = _annealed(orders, 1, duplex, chooser, part, 2 * _COLD, enough)
        work -= part if orders is None else 2 * part
        if best is not None and best.cost <= enough:
            return best
    for i in range(rounds + 1):
        share = _SHARE_OF_LAST if i == rounds else (1 - _SHARE_OF_LAST) / rounds
        found = []
        for symmetry in contenders:
            chooser = random.Random(f"{seed} {i} {symmetry}")
            start = random_rings(servers, rings, symmetry, chooser)
            part = int(work * share / len(contenders))
            union = _annealed(start, symmetry, duplex, chooser, part, _HOT, enough)
            if union.cost <= enough:  # no network is better
                return union
            found.append((union.cost, symmetry, union))
        found.sort(key=lambda entry: entry[:2])
        if best is None or found[0][2].cost < best.cost:
            best = found[0][2]
        contenders = [symmetry for _, symmetry, _ in found[: (len(found) + 1) // 2]]
    assert best is not None
    return best


def search_rings_and_links(
    servers: int, rings: int, links: Sequence[Pair], *, seed: int, work: int
) -> RingUnion:
    """`rings` duplex rings over all servers, and links beside them, with few hops in the mean.

    `links` is where their search begins, for every server its ends: two servers, or a server and -1
    for an end that stays free. The rings alone come first (`search_rings`), with half of the work;
    then rings and links are annealed together. Raises ValueError as `search_rings`.
    """
    union = search_rings(servers, rings, duplex=True, seed=seed, work=work // 2)
    search = _core.RingSearch(servers, 1, True, union.rings, links, (), seed)
    search.anneal(work // 2, _HOT * servers, _COLD * servers)
    orders, ends = search.best()
    return RingUnion(tuple(map(tuple, orders)), tuple(ends), search.best_cost)


def random_rings(
    servers: int, rings: int, symmetry: int, chooser: random.Random
) -> tuple[Order, ...]:
    """Rings that stay the same when every server moves on by servers / symmetry, drawn at random.

    Each is one server of every residue modulo servers / symmetry, in any order, which repeat moved
    on by a stride that brings every repetition to a new place.
    """
    orbits = servers // symmetry
    units = [g for g in range(1, symmetry + 1) if math.gcd(g, symmetry) == 1]
    orders = []
    for _ in range(rings):
        base = [r + orbits * chooser.randrange(symmetry) for r in range(orbits)]
        chooser.shuffle(base)
        stride = orbits * chooser.choice(units)
        orders.append(
            tuple((server + stride * t) % servers for t in range(symmetry) for server in base)
        )
    return tuple(orders)


def _annealed(
    start: tuple[Order, ...],
    symmetry: int,
    duplex: bool,
    chooser: random.Random,
    work: int,
    hot: float,
    enough: int,
) -> RingUnion:
    """`start` changed from the temperature `hot` down, until its cost is `enough`."""
    servers = len(start[0])
    search = _core.RingSearch(servers, symmetry, duplex, start, (), (), chooser.getrandbits(63))
    sources = servers // symmetry
    search.anneal(work, hot * sources, _COLD * sources * min(1.0, hot / _HOT), enough // symmetry)
    orders, _ = search.best()
    return RingUnion(tuple(map(tuple, orders)), (), search.best_cost * symmetry)


def anneal_for_pairs(
    servers: int,
    rings: Sequence[Order],
    links: Sequence[Pair],
    weights: Sequence[int],
    *,
    duplex: bool,
    seed: int,
    work: int,
    heat: float = 0.1,
) -> RingUnion:
    """Rings and links changed until the hops of all pairs, times their weights, are few.

    Every ring keeps its members and every server its number of link ends; `links` may join any two
    servers, and -1 is an end that nothing is plugged into. `weights[s * servers + t]` is what a hop
    from s to t costs; the first temperature is `heat` times what all hops of a server cost on
    average at the start. Raises ValueError for servers, rings, links or weights that do not fit.
    """
    search = _core.RingSearch(servers, 1, duplex, rings, links, weights, seed)
    total = sum(weights)
    connected = search.cost <= total * (servers - 1)  # no path costs a hop of all
    hot = max(1.0, (search.cost if connected else 2 * total) / servers * heat)
    search.anneal(work, hot, hot / 100)
    found, ends = search.best()
    return RingUnion(tuple(map(tuple, found)), tuple(ends), search.best_cost)
