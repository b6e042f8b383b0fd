"""Dragonfly (Kim et al., ISCA 2008): groups of switches, joined all to all inside and outside.

Balanced: p servers on a switch, a = 2p switches in a group, h = p links of a switch to other
groups, at most a h + 1 groups. With fewer groups the links between groups are dealt out evenly.
Routes are minimal; the detour over a random group (Valiant) is not modelled.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import Topology, Wires, link_gbps_of, switched

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    server_gbps: float | None = None,
    p: int | None = None,
) -> Topology:
    """A Dragonfly with `p` servers on a switch (default: the smallest p that is enough).

    Every link has `server_gbps` (default: degree x link rate). `demand` and `seed` change nothing.
    Raises DocumentError for an invalid cluster and ValueError for a p that is too small.
    """
    wires = Wires.of(cluster)
    p = smallest_p(cluster.servers) if p is None else p
    if p < 1 or most_servers(p) < cluster.servers:
        raise ValueError(
            f"p: {p} is not enough for {cluster.servers} servers; use {smallest_p(cluster.servers)}"
        )
    gbps = link_gbps_of(cluster, server_gbps)
    size = 2 * p  # switches in a group
    groups = math.ceil(cluster.servers / (p * size))
    first = cluster.servers
    for server in range(cluster.servers):
        wires.cable(server, first + server // p, gbps)
    for group in range(groups):
        for a, b in combinations(range(group * size, (group + 1) * size), 2):
            wires.cable(first + a, first + b, gbps)
    _join_groups(wires, first, groups, size, p, gbps)
    return switched(
        "dragonfly", cluster, wires, nodes=first + groups * size, switch_ports=p + size - 1 + p
    )


def _join_groups(wires: Wires, first: int, groups: int, size: int, h: int, gbps: float) -> None:
    """As many cables between every two groups, dealt to the switches in turn."""
    if groups < 2:
        return
    cables = size * h // (groups - 1)  # between every two groups
    used = [0] * groups
    for a, b in combinations(range(groups), 2):
        for _ in range(cables):
            ends = [first + group * size + used[group] % size for group in (a, b)]
            wires.cable(ends[0], ends[1], gbps)
            used[a] += 1
            used[b] += 1


def most_servers(p: int) -> int:
    """p a g for a = 2p switches in each of g = a p + 1 groups."""
    return p * 2 * p * (2 * p * p + 1)


def smallest_p(servers: int) -> int:
    p = 1
    while most_servers(p) < servers:
        p += 1
    return p
