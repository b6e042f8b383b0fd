"""CoinChangeMod: routes on a circulant network by offset (paper appendix E.3, Algorithm 4).

Where server i has links to i + c mod n for every coin c, the route from i to j depends only on
(j - i) mod n: it is a shortest sequence of coins with that sum, and the route of one offset moved
to every source loads all links of one stride alike.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from torch_topoopt.topology.routing.shortest_paths import hop_distances

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def coin_change(size: int, coins: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """For every offset 0..size-1 a shortest sequence of coins that sums to it modulo `size`.

    Entry 0 is empty. Where several last coins give equally short sequences, the back-trace takes
    the sequence whose coins the other offsets use least (least increase of the sum of squared
    uses; ties to the smaller coin), so that the links of no stride are favoured.

    Corrections to the printed pseudocode: offset 0 starts at distance 0 and a coin at distance 1
    (printed: coins at 0 and no entry for offset 0, which line 15 reads); a distance is replaced
    only by a smaller one; and coins that do not reach every offset are an error (printed: the loop
    of line 10 never ends).

    Raises ValueError for a coin outside 1..size-1, or if some offset cannot be reached.
    """
    coins = sorted(set(coins))
    for coin in coins:
        if not 1 <= coin < size:
            raise ValueError(f"coins: {coin} is not in 1..{size - 1}")
    routes: list[tuple[int, ...] | None] = [None] * size
    routes[0] = ()
    used = dict.fromkeys(coins, 0)
    frontier = [0]
    while frontier:
        # one round of the loop of line 10: all offsets that are one coin further
        last_coins: dict[int, list[int]] = {}
        for offset in frontier:
            for coin in coins:
                reached = (offset + coin) % size
                if routes[reached] is None:
                    last_coins.setdefault(reached, []).append(coin)
        for offset, choices in sorted(last_coins.items()):
            sequences = [((routes[(offset - c) % size] or ()) + (c,)) for c in choices]
            route = min(sequences, key=lambda sequence: _added_squares(used, sequence))
            routes[offset] = route
            for spent in route:
                used[spent] += 1
        frontier = sorted(last_coins)
    found = tuple(route for route in routes if route is not None)
    if len(found) < size:
        raise ValueError(
            f"coins: {coins} reach only {len(found)} of the {size} offsets modulo {size}; "
            "their greatest common divisor with it must be 1"
        )
    return found


def _added_squares(used: dict[int, int], sequence: tuple[int, ...]) -> int:
    """The growth of the sum of squared uses when `sequence` is added."""
    return sum((2 * used[c] + m) * m for c, m in Counter(sequence).items())


def shortest_last_coins(size: int, coins: Iterable[int]) -> list[list[tuple[int, int]]]:
    """For every offset the last coins of its shortest sequences: (coin, offset before it).

    Ascending by the offset before; none for offset 0 and for offsets that coins do not reach.
    """
    coins = sorted(set(coins))
    distance = hop_distances([[(o + c) % size for c in coins] for o in range(size)], 0)
    ways: list[list[tuple[int, int]]] = []
    for offset in range(size):
        before = [(coin, (offset - coin) % size) for coin in coins]
        last = [(c, o) for c, o in before if 0 <= distance[o] == distance[offset] - 1]
        ways.append(sorted(last, key=lambda way: way[1]))
    return ways


def least_loaded_sequences(
    size: int,
    last_coins: Sequence[Sequence[tuple[int, int]]],
    offset: int,
    count: int,
    load: Mapping[int, float],
) -> list[tuple[int, ...]]:
    """Up to `count` different shortest sequences of coins for one offset, least loaded first.

    `last_coins` is from `shortest_last_coins`; `load[coin]` is the cost of spending it. Ties go to
    the sequence that visits the lower offsets. Exact: `count` sequences are kept per offset.
    """
    layers = [{offset}]  # the offsets before it, one coin less each
    while 0 not in layers[-1]:
        layers.append({before for later in layers[-1] for _, before in last_coins[later]})
    best: dict[int, list[tuple[float, tuple[int, ...]]]] = {0: [(0.0, (0,))]}
    for layer in layers[-2::-1]:
        for reached in layer:
            ways = [
                (cost + load[coin], (*way, reached))
                for coin, before in last_coins[reached]
                for cost, way in best[before]
            ]
            ways.sort()
            best[reached] = ways[:count]
    return [tuple((b - a) % size for a, b in pairwise(way)) for _, way in best[offset]]


def translate(route: Iterable[int], source: int, size: int) -> tuple[int, ...]:
    """The servers that a sequence of coins visits from `source`, modulo `size`, source included."""
    servers = [source]
    for coin in route:
        servers.append((servers[-1] + coin) % size)
    return tuple(servers)
