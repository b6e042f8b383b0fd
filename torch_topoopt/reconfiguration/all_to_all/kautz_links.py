"""Generalised Kautz graphs as circuits: server x to -k x - a modulo n, a = 1..k (Imase and Itoh).

Every server has k circuits out and k in, and is at most ceil(log_k n) hops from any other. Where
the rule joins a server to itself, the port would be dark; such servers are joined to each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def kautz_links(servers: int, degree: int, *, loops: bool = False) -> NDArray[np.int32]:
    """`links[server, port]`; with `loops` as in the rule. If only one server is joined to itself,
    its port stays dark."""
    server = np.arange(servers)[:, None]
    links = (-degree * server - np.arange(1, degree + 1)) % servers
    if not loops:
        looped = np.argwhere(links == server)
        links[looped[:, 0], looped[:, 1]] = np.roll(looped[:, 0], -1)
    return links.astype(np.int32)
