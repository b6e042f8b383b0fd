"""The fewest slots that an all-to-all can take.

A server has n - 1 chunks to send, and a chunk that is h hops from its target takes h slots of a
link, so what counts is how many targets can be h hops away. The bounds are Moore's argument for a
sequence of topologies: `uncarried_bound_slots` where each chunk travels within one topology
(Theorem 1 of "To Reconfigure or Not to Reconfigure" is its case of degree 1), `carried_bound_slots`
where chunks may wait at a relay while circuits move, and go on over the next topology.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def uncarried_bound_slots(servers: int, degree: int, topologies: int) -> int:
    """No schedule whose chunks stay on one topology each takes fewer slots.

    In each of d topologies at most k^h targets are h hops away. With one circuit per server this is
    Theorem 1: d q (q + 1) / 2 + u (q + 1), q and u being quotient and remainder of n - 1 by d.
    Raises ValueError for fewer than 2 servers, or no circuit, or no topology.
    """
    return _bound(servers, degree, topologies, lambda hops: topologies * degree**hops)


def carried_bound_slots(servers: int, degree: int, topologies: int) -> int:
    """No schedule at all takes fewer slots, whatever is carried over from topology to topology.

    A walk of h hops is cut into d parts, of which some are empty, in C(h + d - 1, d - 1) ways, and
    has k^h choices of links. Raises ValueError as above.
    """
    return _bound(
        servers,
        degree,
        topologies,
        lambda hops: comb(hops + topologies - 1, topologies - 1) * degree**hops,
    )


def _bound(servers: int, degree: int, topologies: int, reached: Callable[[int], int]) -> int:
    """`reached`: the most targets that can be so many hops away."""
    for name, value, least in (
        ("servers", servers, 2),
        ("degree", degree, 1),
        ("reconfigurations", topologies, 1),
    ):
        if value < least:
            raise ValueError(f"{name}: {value} is not at least {least}")
    left, hops, link_slots = servers - 1, 0, 0
    while left:
        hops += 1
        here = min(left, reached(hops))
        link_slots += hops * here
        left -= here
    return -(-link_slots // degree)
