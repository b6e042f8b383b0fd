"""The links of a topology to which a switch moves while a job runs; pure.

A topology has the target server of each port. The receiving port is free, so an earlier circuit to
the right server stays. Hosts forward for each other along shortest paths, because acknowledgements
of a directed circuit need a way back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Link

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def moved_links(targets: Sequence[Sequence[int]], before: Iterable[Link] = ()) -> tuple[Link, ...]:
    """The links if port p of server s sends to `targets[s][p]` (s: the port is unused).

    Links that are also in `before` keep their receiving ports. Raises FabricError if a server has
    more incoming circuits than ports, or does not exist.
    """
    servers, degree = len(targets), max(map(len, targets), default=0)
    kept = {
        (link.source, link.source_port): link
        for link in before
        if targets[link.source][link.source_port] == link.target
    }
    free = [set(range(degree)) for _ in range(servers)]
    for link in kept.values():
        free[link.target].discard(link.target_port)
    links = []
    for source, ports in enumerate(targets):
        for port, target in enumerate(ports):
            if target == source:
                continue
            if not 0 <= target < servers:
                raise FabricError(f"links[{source}][{port}]: there is no server {target}")
            if (source, port) in kept:
                links.append(kept[source, port])
            elif free[target]:
                receiving = min(free[target])
                free[target].remove(receiving)
                links.append(Link(source, port, target, receiving))
            else:
                raise FabricError(
                    f"links[{source}][{port}]: more than {degree} circuits lead to server {target}"
                )
    return tuple(links)


def first_links(servers: int, links: Sequence[Link]) -> list[dict[int, Link]]:
    """For each server: the first link of a shortest path to each reachable one. Raises FabricError
    for a link without a way back from its target to its source."""
    leaving: list[list[Link]] = [[] for _ in range(servers)]
    for link in links:
        leaving[link.source].append(link)
    firsts = [_first_links_of(server, leaving) for server in range(servers)]
    for link in links:
        if link.source not in firsts[link.target]:
            raise FabricError(
                f"the circuit from server {link.source} to server {link.target} has no way back: "
                "what it carries could not be acknowledged"
            )
    return firsts


def _first_links_of(server: int, leaving: Sequence[Sequence[Link]]) -> dict[int, Link]:
    first: dict[int, Link] = {}
    waiting = deque([server])
    while waiting:
        here = waiting.popleft()
        for link in leaving[here]:
            if link.target != server and link.target not in first:
                first[link.target] = link if here == server else first[here]
                waiting.append(link.target)
    return first
