"""Least hops between all servers, counted in C++: 64 breadth-first searches at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.plan import Link


@dataclass(frozen=True)
class HopSummary:
    """Of the least hops of all ordered pairs of servers: their mean and the largest."""

    mean: float
    diameter: int


def hop_summary(servers: int, links: Iterable[Link]) -> HopSummary:
    """Mean and maximum of the least hops over `links`, parallel links counting once.

    Both are 0 for one server. Raises ValueError if some server cannot reach another, or a link
    names a server that is not there.
    """
    found = _core.hop_summary(servers, _ends(links))
    if found.unreachable:
        raise ValueError(f"links: {found.unreachable} ordered pairs of servers have no path")
    mean = found.sum / (servers * (servers - 1)) if servers > 1 else 0.0
    return HopSummary(mean, found.diameter)


def hop_matrix(servers: int, links: Iterable[Link]) -> NDArray[np.int16]:
    """Least hops [source][target]; -1 where there is no path.

    Raises ValueError for more than 32767 servers or a link that names a server that is not there.
    """
    return _core.hop_matrix(servers, _ends(links))


def _ends(links: Iterable[Link]) -> list[tuple[int, int]]:
    return [(link.source, link.target) for link in links]
