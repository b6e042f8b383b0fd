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
    from collections.abc import Iterable, Mapping, Sequence

    Port = tuple[int, int]  # server and port


def moved_links(
    targets: Sequence[Sequence[int]],
    before: Iterable[Link] = (),
    switches: Mapping[Port, str] | None = None,
) -> tuple[Link, ...]:
    """The links if server s sends to all of `targets[s]`, one for each port (s: it is unused).

    Links that are also in `before` keep their receiving ports. `switches` has the switch of every
    port, if there are several: both ends of a link are on one switch, and ports of a server
    exchange their targets for that. Raises FabricError if a server has more incoming circuits than
    ports, or does not exist, and for servers whose ports are on switches of other servers.
    """
    servers, degree = len(targets), max(map(len, targets), default=0)
    incoming = [0] * servers
    for source, ports in enumerate(targets):
        for port, target in enumerate(ports):
            if not 0 <= target < servers:
                raise FabricError(f"links[{source}][{port}]: there is no server {target}")
            incoming[target] += target != source
            if incoming[target] > degree:
                raise FabricError(
                    f"links[{source}][{port}]: more than {degree} circuits lead to server {target}"
                )
    if switches is not None and len(set(switches.values())) > 1:
        targets = _within_switches(targets, switches)
    switch_of = switches or {}
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
            if (source, port) in kept:
                links.append(kept[source, port])
                continue
            own = switch_of.get((source, port))
            receiving = min(p for p in free[target] if switch_of.get((target, p)) == own)
            free[target].remove(receiving)
            links.append(Link(source, port, target, receiving))
    return tuple(links)


def _within_switches(
    targets: Sequence[Sequence[int]], switches: Mapping[Port, str]
) -> list[list[int]]:
    """`targets` in an order for which each switch has as many circuits into a server as ports."""
    by_switch = [
        sorted(range(len(ports)), key=lambda port: (switches[server, port], port))
        for server, ports in enumerate(targets)
    ]
    names = [[switches[server, port] for port in ports] for server, ports in enumerate(by_switch)]
    for server, own in enumerate(names):
        if own != names[0]:
            raise FabricError(
                f"the ports of server {server} are on {', '.join(own)}, and those of server 0 on "
                f"{', '.join(names[0])}; circuits move in a job only where these are equal"
            )
    pairs = [(s, t) for s, ports in enumerate(targets) for t in ports if t != s]
    arranged = [[server] * len(ports) for server, ports in enumerate(targets)]
    for (source, target), colour in zip(pairs, _coloured(pairs, len(names[0])), strict=True):
        arranged[source][by_switch[source][colour]] = target
    return arranged


def _coloured(pairs: Sequence[tuple[int, int]], colours: int) -> list[int]:
    """A colour for each pair, such that no two of one colour share a source, or share a target.

    As many colours as pairs of one source or target are enough (Kőnig).
    """
    found: list[int] = []
    used: dict[tuple[str, int, int], int] = {}  # ("from" or "to", server, colour) -> pair

    def ends(pair: int) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("from", pairs[pair][0]), ("to", pairs[pair][1])

    def free(end: tuple[str, int]) -> int:
        return next(colour for colour in range(colours) if (*end, colour) not in used)

    for pair in range(len(pairs)):
        near, far = ends(pair)
        wanted, other = free(near), free(far)
        # Along the path from `far` in both colours, each pair takes the other colour.
        path, end, colour = [], far, wanted
        while (there := used.get((*end, colour))) is not None:
            path.append(there)
            end = next(e for e in ends(there) if e != end)
            colour = other if colour == wanted else wanted
        for there in path:
            for end in ends(there):
                used.pop((*end, found[there]), None)
        for there in path:
            found[there] = other if found[there] == wanted else wanted
        found.append(wanted)
        for there in (*path, pair):
            for end in ends(there):
                used[(*end, found[there])] = there
    return found


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
