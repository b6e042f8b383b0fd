"""The placement of a strategy's logical servers on a grid.

All foldings of the strategy's axes are ranked by the hops of their bytes. The best of them, the
numeric order and the board order are priced at flow level. From the fastest, pairs of servers (on
few servers also triples) swap places as long as that gains. Nothing is random.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan.network import hops_around
from torch_topoopt.planner.mesh.foldings import axes_of, by_boards, foldings, row_major
from torch_topoopt.planner.mesh.pricing import moved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from torch_topoopt.plan import Demand
    from torch_topoopt.planner.mesh.foldings import Order
    from torch_topoopt.planner.mesh.pricing import GridPricing
    from torch_topoopt.search.strategies import Strategy

_MOST_FOLDINGS = 1000  # ranked by hops
_PRICED = 8  # of them, at flow level
_IMPROVED = 4  # of these, by swaps
_MOST_SWAPPED = 32  # servers, up to which all pairs are tried
_MOST_ROTATED = 8  # servers, up to which triples are tried
_CHANGES = 150  # strategies priced for swaps
_CHANGES_OF_FEW = 1500  # the same with triples
_Moves = list[tuple[int, ...]]
_GAIN = 1e-9  # least relative gain of a swap


@dataclass(frozen=True)
class PlacedStrategy:
    """A strategy on servers of a grid. `order` is the server for each logical one, and `how` names
    the method. `natural_rings`: whether groups use rings of their own shape or the network's."""

    strategy: Strategy
    order: Order
    how: str
    natural_rings: bool
    iteration_s: float


def naive(pricing: GridPricing, strategy: Strategy) -> PlacedStrategy:
    """The numeric order, with the rings of the network: no placement on the grid."""
    order = tuple(range(pricing.topology.servers))
    seconds = pricing.seconds(strategy, order, natural=False)
    return PlacedStrategy(strategy, order, "in the order of numbers", False, seconds)


def best_order(
    pricing: GridPricing, strategy: Strategy, changes: int | None = None
) -> PlacedStrategy:
    """The fastest order found for `strategy`, never slower than `naive`; the first of equal ones.

    Swaps price about `changes` strategies at most (default: 150, and 1 500 for up to 8 servers),
    none where more than 32 servers have work. Raises ValueError for a strategy that does not fit.
    """
    found = [naive(pricing, strategy)]
    found += (_placed(pricing, strategy, order, text) for text, order in _ranked(pricing, strategy))
    found.sort(key=lambda placed: placed.iteration_s)
    few = pricing.grid.servers <= _MOST_ROTATED
    if changes is None:
        changes = _CHANGES_OF_FEW if few else _CHANGES
    if pricing.grid.servers <= _MOST_SWAPPED and changes > 0:
        used = sorted({server for placement in strategy for server in placement.servers})
        moves = _rotations(used, pricing.grid.servers)
        limit = pricing.priced + changes
        begin = {placed.strategy: placed for placed in reversed(found)}
        for placed in sorted(begin.values(), key=lambda p: p.iteration_s)[:_IMPROVED]:
            found.append(_swapped(pricing, strategy, placed, moves, limit))
        if few:
            found.append(_best_first(pricing, strategy, found, moves, limit))
    return min(found, key=lambda placed: placed.iteration_s)


def _placed(pricing: GridPricing, strategy: Strategy, order: Order, how: str) -> PlacedStrategy:
    natural_s = pricing.seconds(strategy, order)
    own_s = pricing.seconds(strategy, order, natural=False)
    seconds = min(natural_s, own_s)
    return PlacedStrategy(moved(strategy, order), order, how, natural_s < own_s, seconds)


def _ranked(pricing: GridPricing, strategy: Strategy) -> Iterator[tuple[str, Order]]:
    """Orders to price, by name, each once."""
    grid = pricing.grid
    known: set[Order] = set()
    axes = axes_of(strategy, grid.servers)
    candidates = [
        (str(f), _complete(f.order(grid), grid.servers))
        for f in itertools.islice(foldings(grid, axes), _MOST_FOLDINGS)
    ]
    traffic = pricing.demand_of(strategy)
    source, target, size = _hops_of(traffic)
    distance = pricing.distances
    ranked = sorted(
        (float((size * distance[places[source], places[target]]).sum()), i)
        for i, (_, order) in enumerate(candidates)
        for places in (np.array(order),)
    )
    first = [("as searched", row_major(grid).order(grid))]
    if grid.board_rows * grid.board_columns > 1:
        first.append(("board by board", by_boards(grid).order(grid)))
    for text, order in (*first, *(candidates[i] for _, i in ranked[:_PRICED])):
        if order not in known:
            known.add(order)
            yield text, order


def _complete(order: Order, servers: int) -> Order:
    """`order`, then the other servers of the grid, ascending."""
    if len(order) == servers:
        return order
    return (*order, *sorted(set(range(servers)) - set(order)))


def _hops_of(traffic: Demand) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Sources, targets and bytes; a group's bytes go around in logical order."""
    hops = [(pair.source, pair.target, float(pair.size_bytes)) for pair in traffic.pairs]
    for group in traffic.groups:
        members, count = group.servers, len(group.servers)
        size = 2 * (count - 1) / count * group.size_bytes
        hops += [(a, b, size) for a, b in hops_around(members)]
    source, target, sizes = zip(*hops, strict=True) if hops else ((), (), ())
    return np.array(source, dtype=int), np.array(target, dtype=int), np.array(sizes, dtype=float)


def _swapped(
    pricing: GridPricing, strategy: Strategy, placed: PlacedStrategy, moves: _Moves, limit: int
) -> PlacedStrategy:
    """`placed` after all swaps that gain, until none does or `limit` strategies are priced."""
    best, changes = placed, 0
    gained = True
    while gained and pricing.priced < limit:
        gained = False
        for places in moves:
            other = _placed(pricing, strategy, _rotated(best.order, places), best.how)
            if other.iteration_s < best.iteration_s * (1 - _GAIN):
                best, gained, changes = other, True, changes + 1
            if pricing.priced >= limit:
                break
    return replace(best, how=f"{placed.how}; {changes} moved") if changes else best


def _best_first(
    pricing: GridPricing,
    strategy: Strategy,
    begin: Sequence[PlacedStrategy],
    moves: _Moves,
    limit: int,
) -> PlacedStrategy:
    """The best order reached by swaps from `begin`, also over orders that gain nothing, the fastest
    first, until `limit` strategies are priced; up to 6 servers that is every order."""
    seen = {placed.order: placed for placed in begin}
    waiting = [(placed.iteration_s, i, placed) for i, placed in enumerate(seen.values())]
    heapq.heapify(waiting)
    best = min(seen.values(), key=lambda placed: placed.iteration_s)
    while waiting:
        _, _, placed = heapq.heappop(waiting)
        for places in moves:
            if pricing.priced >= limit:
                return best
            order = _rotated(placed.order, places)
            if order in seen:
                continue
            seen[order] = other = _placed(pricing, strategy, order, "moved one by one")
            heapq.heappush(waiting, (other.iteration_s, len(seen), other))
            if other.iteration_s < best.iteration_s * (1 - _GAIN):
                best = other
    return best


def _rotated(order: Order, places: tuple[int, ...]) -> Order:
    """`order` with the logical servers `places` rotated: each goes to the place of the next."""
    there = list(order)
    for here, following in hops_around(places):
        there[here] = order[following]
    return tuple(there)


def _rotations(used: list[int], servers: int) -> _Moves:
    """Logical servers to swap, at least one with work: pairs; on few servers also triples."""
    has_work = set(used)
    everyone = range(servers)
    found: _Moves = list(itertools.combinations(everyone, 2))
    if servers <= _MOST_ROTATED:
        for a, b, c in itertools.combinations(everyone, 3):
            found += [(a, b, c), (a, c, b)]
    return [places for places in found if not has_work.isdisjoint(places)]
