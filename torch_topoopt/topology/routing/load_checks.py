"""Checks of results passed between algorithms: matchings, and bytes on links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.routing.loads import link_bytes as bytes_on_links
from torch_topoopt.topology.routing.loads import traffic_matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from torch_topoopt.plan import Demand, Network

_WHERE = "prediction.link_bytes"


def validate_matching(pairs: Iterable[tuple[int, int]], *, directed: bool) -> None:
    """Raises ValueError unless no server is in two pairs, or `directed` at the same end of two."""
    taken: dict[tuple[int, int], tuple[int, int]] = {}
    for pair in pairs:
        if pair[0] == pair[1]:
            raise ValueError(f"matching: server {pair[0]} is paired with itself")
        for end, server in enumerate(pair):
            other = taken.setdefault((server, end if directed else 0), pair)
            if other is not pair:
                raise ValueError(f"matching: server {server} is in both {other} and {pair}")


def validate_loads(servers: int, network: Network, demand: Demand) -> Network:
    """Returns `network`, or raises DocumentError unless it carries `demand` without losing bytes.

    What rings and routes put on its links is conserved (`validate_link_bytes`). Raises ValueError
    if rings or routes for the demand are missing.
    """
    traffic = traffic_matrix(network, demand, servers)
    _check_conserved(network, demand, traffic, bytes_on_links(network, traffic).tolist())
    return network


def validate_link_bytes(
    servers: int, network: Network, demand: Demand, link_bytes: Sequence[int]
) -> None:
    """Raises DocumentError unless `link_bytes[i]` on `network.links[i]` are those of `demand`.

    It first checks that bytes are conserved: a server sends what it receives, except its own
    demand. Then it compares every link with the bytes of rings and routes. The tolerance is a byte
    per pair and group. Raises ValueError if rings or routes for the demand are missing.
    """
    if len(link_bytes) != len(network.links):
        raise DocumentError(f"{_WHERE}: {len(link_bytes)} entries for {len(network.links)} links")
    traffic = traffic_matrix(network, demand, servers)
    _check_conserved(network, demand, traffic, link_bytes)
    rounding = _rounding(demand)
    expected = bytes_on_links(network, traffic).tolist()
    for i, (size_bytes, right) in enumerate(zip(link_bytes, expected, strict=True)):
        if abs(size_bytes - right) > rounding + 1e-9 * right:
            raise DocumentError(
                f"{_WHERE}[{i}]: {size_bytes} bytes, but the demand puts {right:.0f} on this link"
            )


def _rounding(demand: Demand) -> float:
    return len(demand.groups) + len(demand.pairs) + 1.0


def _check_conserved(
    network: Network, demand: Demand, traffic: NDArray[np.float64], link_bytes: Sequence[float]
) -> None:
    surplus = traffic.sum(axis=0) - traffic.sum(axis=1)
    for link, size_bytes in zip(network.links, link_bytes, strict=True):
        if not 0 <= size_bytes < np.inf:
            raise DocumentError(f"{_WHERE}: {size_bytes} is not at least 0 and finite")
        surplus[link.source] += size_bytes
        surplus[link.target] -= size_bytes
    allowed = 2 * _rounding(demand) * max(1, len(network.links)) + 1e-9 * traffic.sum()
    for server, size_bytes in enumerate(surplus.tolist()):
        if abs(size_bytes) > allowed:
            raise DocumentError(
                f"{_WHERE}: server {server} sends {abs(size_bytes):.0f} bytes "
                f"{'more' if size_bytes > 0 else 'less'} than it receives and has to send"
            )
