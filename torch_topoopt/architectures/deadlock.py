"""Deadlock freedom of adaptive routing, on its channel dependency graph.

Where buffers are never overrun, a packet that holds a virtual channel of a link may have to wait
for any channel that its routing allows next. If those dependencies form no cycle, no packets can
wait for each other for ever (Dally and Seitz, IEEE ToC 1987); this is sufficient, and not necessary
where packets choose among several channels. The graph is made from the same object that the packet
level asks for the next links (`_core.AdaptiveRouting`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt import _core
    from torch_topoopt.architectures.topology import Topology


@dataclass(frozen=True)
class VirtualChannel:
    """Channel `number` of `link` (an index) from node `source` to `target`."""

    link: int
    number: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.source} to {self.target} on channel {self.number}"


def dependency_cycle(
    topology: Topology, routing: _core.AdaptiveRouting, hosts: Sequence[int] | None = None
) -> tuple[VirtualChannel, ...]:
    """Channels each of which packets may hold while they wait for the next, and for the first at
    the end; none if the routing of packets between `hosts` (default: all servers) has no such cycle
    and so cannot deadlock.

    Raises ValueError for hosts without a path between them, or with one that needs more channels
    than the routing has.
    """
    everyone = list(range(topology.servers)) if hosts is None else list(hosts)
    found = []
    for channel in _cycle(routing.dependencies(everyone).tolist()):
        link, number = divmod(channel, routing.channels)
        ends = topology.links[link]
        found.append(VirtualChannel(link, number, ends.source, ends.target))
    return tuple(found)


def _cycle(edges: Sequence[tuple[int, int]]) -> list[int]:
    """Nodes of a cycle of a directed graph, in its order; none if it has none. In time that grows
    with the edges, which a search for the cycle itself does not keep to."""
    out: dict[int, list[int]] = {}
    into: dict[int, list[int]] = {}
    for a, b in edges:
        out.setdefault(a, []).append(b)
        into.setdefault(b, []).append(a)
    waits = {node: len(before) for node, before in into.items()}
    free = [node for node in out if node not in waits]
    for node in free:  # grows: what nothing leads to any more is no part of a cycle
        for after in out.get(node, ()):
            waits[after] -= 1
            if waits[after] == 0:
                free.append(after)
    left = {node for node, count in waits.items() if count > 0}
    if not left:
        return []
    node = min(left)
    order: list[int] = []
    place: dict[int, int] = {}
    while node not in place:
        place[node] = len(order)
        order.append(node)
        node = next(before for before in into[node] if before in left)
    return order[place[node] :][::-1]
