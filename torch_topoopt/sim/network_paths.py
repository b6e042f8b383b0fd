"""Paths over the links of a network."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Network, Pair

    WeightedLinks = tuple[list[int], float]  # a path and its fraction of the bytes


def paths_of(
    network: Network, pairs: Sequence[Pair], is_direct: Sequence[bool]
) -> list[list[WeightedLinks]]:
    """The paths of every pair, or its links if `is_direct`. Parallel links share its bytes.

    Raises ValueError for a pair without a route.
    """
    between: dict[tuple[int, int], list[int]] = {}
    for i, link in enumerate(network.links):
        between.setdefault((link.source, link.target), []).append(i)
    routes = network.routes_by_pair()
    paths: list[list[WeightedLinks]] = []
    for pair, direct in zip(pairs, is_direct, strict=True):
        if direct:
            paths.append(_lanes([between[pair]], 1.0))
            continue
        if pair not in routes:
            raise ValueError(f"routes: no link and no route from server {pair[0]} to {pair[1]}")
        paths.append([])
        for route in routes[pair]:
            hops = [between[hop] for hop in pairwise(route.servers)]
            paths[-1] += _lanes(hops, route.weight)
    return paths


def _lanes(hops: list[list[int]], weight: float) -> list[WeightedLinks]:
    lanes = math.lcm(*(len(links) for links in hops))
    return [([links[lane % len(links)] for links in hops], weight / lanes) for lane in range(lanes)]
