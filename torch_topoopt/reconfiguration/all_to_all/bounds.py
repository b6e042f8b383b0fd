"""Lower bounds on the slots of an all-to-all.

A chunk h hops from its target takes h slots of a link. So the number of targets at h hops is what
counts; at best, the targets with most chunks are the nearest. The bounds are Moore's argument for a
sequence of topologies. In `uncarried_bound_slots` each chunk travels within one topology (Theorem 1
of "To Reconfigure or Not to Reconfigure": degree 1 and one chunk for each pair). In
`carried_bound_slots` chunks may wait at a relay while circuits move, and continue on the next
topology.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def uncarried_bound_slots(
    servers: int, degree: int, topologies: int, counts: NDArray[np.int32] | None = None
) -> int:
    """A lower bound for schedules whose chunks stay on one topology each.

    In each of d topologies at most k^h targets are h hops away. With one circuit per server, and
    one chunk for each pair (`counts` None), this is Theorem 1: d q (q + 1) / 2 + u (q + 1), q and u
    being quotient and remainder of n - 1 by d. Raises ValueError for fewer than 2 servers, or no
    circuit, or no topology.
    """
    hops = _hops(servers, degree, topologies, lambda hops: topologies * degree**hops)
    return _bound(hops, degree, counts)


def carried_bound_slots(
    servers: int, degree: int, topologies: int, counts: NDArray[np.int32] | None = None
) -> int:
    """A lower bound for all schedules, whatever is carried over from topology to topology.

    A walk of h hops is cut into d parts, of which some are empty, in C(h + d - 1, d - 1) ways, and
    has k^h choices of links. Raises ValueError as above.
    """
    hops = _hops(
        servers,
        degree,
        topologies,
        lambda hops: comb(hops + topologies - 1, topologies - 1) * degree**hops,
    )
    return _bound(hops, degree, counts)


def _hops(
    servers: int, degree: int, topologies: int, reached: Callable[[int], int]
) -> NDArray[np.int64]:
    """Least hops to the nearest target, the second, and so on; `reached`: the maximum number of
    targets per number of hops."""
    for name, value, least in (
        ("servers", servers, 2),
        ("degree", degree, 1),
        ("reconfigurations", topologies, 1),
    ):
        if value < least:
            raise ValueError(f"{name}: {value} is not at least {least}")
    found: list[int] = []
    hops = 0
    while len(found) < servers - 1:
        hops += 1
        found += [hops] * min(servers - 1 - len(found), reached(hops))
    return np.array(found, dtype=np.int64)


def _bound(hops: NDArray[np.int64], degree: int, counts: NDArray[np.int32] | None) -> int:
    if counts is None:
        return -(-int(hops.sum()) // degree)
    links = len(counts) * degree
    most_first = np.sort(counts, axis=1)[:, :0:-1].astype(np.int64)
    ends = max(int(counts.sum(axis=0).max()), int(counts.sum(axis=1).max()))
    return max(-(-int((most_first @ hops).sum()) // links), -(-ends // degree))
