"""The links of a topology that a switch is moved to while a job runs; pure.

A topology says which server each port sends to. Which port of that server receives is free: where a
circuit of before leads to the right server, it stays as it is. Hosts forward for each other along
shortest paths, as the acknowledgements of what a directed circuit carries need a way back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Link

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def moved_links(targets: Sequence[Sequence[int]], before: Iterable[Link] = ()) -> tuple[Link, ...]:
    """The links where port p of server s sends to `targets[s][p]`, which for a dark port is s.

    Links of `before`, between ports of the same servers, keep their receiving ports if they are
    among them. Raises FabricError where more
    circuits lead to a server than it has ports, or to one that there is not.
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
    """For each server: the link on which a shortest path to each other one begins, where there is
    one. Raises FabricError for a link without a way back from its target to its source."""
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
