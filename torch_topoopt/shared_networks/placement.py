"""The free servers for a job on a network of switches."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence

    from torch_topoopt.shared_networks.jobs_file import PlacementRule


def choose_servers(
    rule: PlacementRule,
    free: Collection[int],
    count: int,
    switch_of: Sequence[int],
    rng: random.Random,
) -> tuple[int, ...] | None:
    """`count` of the `free` servers in the order of the job's ranks; None if there are too few.

    "first-fit" takes those with the lowest numbers. "packed" takes few switches: the one with the
    fewest sufficient free servers, else all of the switch with the most, and so on. "random" draws
    servers and their order.
    """
    if len(free) < count:
        return None
    if rule == "random":
        return tuple(rng.sample(sorted(free), count))
    if rule == "first-fit":
        return tuple(sorted(free)[:count])
    by_switch: dict[int, list[int]] = {}
    for server in sorted(free):
        by_switch.setdefault(switch_of[server], []).append(server)
    chosen: list[int] = []
    while len(chosen) < count:
        left = count - len(chosen)
        enough = [switch for switch, servers in by_switch.items() if len(servers) >= left]
        if enough:
            switch = min(enough, key=lambda s: (len(by_switch[s]), s))
        else:
            switch = max(by_switch, key=lambda s: (len(by_switch[s]), -s))
        chosen += by_switch.pop(switch)[:left]
    return tuple(sorted(chosen))


def spread(servers: Sequence[int], switch_of: Sequence[int]) -> float:
    """The number of these servers' switches over the smallest possible one; 1 is a job in one
    piece."""
    largest = max(Counter(switch_of).values())
    least = -(-len(servers) // largest)
    return len({switch_of[server] for server in servers}) / least
