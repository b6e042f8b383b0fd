"""Deadlock freedom of adaptive routing, on its channel dependency graph.

Where buffers never overflow, a packet that holds a virtual channel of a link may wait for any
channel that its routing allows next. Without a cycle of such dependencies there is no deadlock
(Dally and Seitz, IEEE ToC 1987). This is sufficient, but not necessary where packets choose among
several channels. The graph comes from the object that the packet level uses for the next links
(`_core.AdaptiveRouting`).
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
    topology: Topology, routing: _core.AdaptiveRouting
) -> tuple[VirtualChannel, ...]:
    """A cycle of channels: packets may hold each while they wait for the next. Empty if packets
    between servers have none and so cannot deadlock.

    Raises ValueError for servers without a path between them, or with one that needs more channels
    than the routing has.
    """
    found = []
    for channel in _cycle(routing.dependencies(list(range(topology.servers))).tolist()):
        link, number = divmod(channel, routing.channels)
        ends = topology.links[link]
        found.append(VirtualChannel(link, number, ends.source, ends.target))
    return tuple(found)


def _cycle(edges: Sequence[tuple[int, int]]) -> list[int]:
    """Nodes of a cycle of a directed graph, in order; empty without one. The time is linear in the
    edges; a direct search for a cycle may take longer."""
    out: dict[int, list[int]] = {}
    into: dict[int, list[int]] = {}
    for a, b in edges:
        out.setdefault(a, []).append(b)
        into.setdefault(b, []).append(a)
    waits = {node: len(before) for node, before in into.items()}
    free = [node for node in out if node not in waits]
    for node in free:  # grows: a node without remaining predecessors is in no cycle
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
