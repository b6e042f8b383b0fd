"""Routing as by a protocol: the next switches on all shortest live paths."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch_topoopt.route_control.network_file import NetworkFile

    NextHops = dict[str, dict[str, tuple[str, ...]]]


def next_hops(network: NetworkFile, dead: Collection[frozenset[str]] = ()) -> NextHops:
    """Switch -> ToR -> the neighbours that are one cable nearer to it, as the file lists them.

    Cables in `dead` do not count. A ToR has no entry for itself or where it is unreachable.
    """
    neighbours: dict[str, list[str]] = {switch.name: [] for switch in network.switches}
    for cable in network.links:
        if frozenset(cable.ends) not in dead:
            a, b = cable.ends
            neighbours[a].append(b)
            neighbours[b].append(a)
    found: NextHops = {name: {} for name in neighbours}
    for tor in sorted({host.switch for host in network.hosts}):
        hops = _hops_to(tor, neighbours)
        for name in hops:
            if name != tor:
                found[name][tor] = tuple(
                    near for near in neighbours[name] if hops.get(near) == hops[name] - 1
                )
    return found


def _hops_to(tor: str, neighbours: dict[str, list[str]]) -> dict[str, int]:
    """Cables from each switch that reaches `tor`."""
    hops, waiting = {tor: 0}, deque([tor])
    while waiting:
        name = waiting.popleft()
        for near in neighbours[name]:
            if near not in hops:
                hops[near] = hops[name] + 1
                waiting.append(near)
    return hops
