"""The share of an AllReduce on each ring if link rates differ."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.plan.network import Ring
    from torch_topoopt.plan.routes import Pair, Route


def shared_by_slowest_link(
    rings: Sequence[Ring],
    table: Mapping[Pair, tuple[Route, ...]],
    rates: Mapping[Pair, float],
) -> tuple[Ring, ...]:
    """The rings, with shares in proportion to each one's slowest link; unchanged at equal rates.

    `table` has the routes of neighbours. `rates` has the total rate from one server to another, in
    any unit; rings over the same links divide it.
    """
    if len(set(rates.values())) < 2 or len(rings) < 2:
        return tuple(rings)
    hops = [_links_of(ring, table) for ring in rings]
    users: dict[Pair, int] = {}
    for ring_hops in hops:
        for hop in ring_hops:
            users[hop] = users.get(hop, 0) + 1
    slowest = [min(rates[hop] / users[hop] for hop in ring_hops) for ring_hops in hops]
    total = sum(slowest)
    return tuple(
        replace(ring, share=rate / total) for ring, rate in zip(rings, slowest, strict=True)
    )


def _links_of(ring: Ring, table: Mapping[Pair, tuple[Route, ...]]) -> list[Pair]:
    return [hop for pair in ring.hops for route in table[pair] for hop in pairwise(route.servers)]
