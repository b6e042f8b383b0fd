"""Dragonfly (Kim et al., ISCA 2008): groups of switches, joined all to all inside and outside.

p servers on a switch, a switches in a group, h links of a switch to other groups; balanced, a = 2p
and h = p. There are at most a h + 1 groups; with fewer, the links between groups are spread evenly.
Routes are minimal; with `detours`, packets that choose their links may go through a third group.
Several switches may be in one chassis (HammingMesh paper, Appendix C: two of 31 ports in one of
64).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from torch_topoopt.architectures.adaptive import every_hop_rule
from torch_topoopt.architectures.topology import (
    ChannelRule,
    Medium,
    Topology,
    Wires,
    link_gbps_of,
    switched,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.plan import Cluster, Demand


@dataclass(frozen=True)
class DragonflyShape:
    """`groups` groups of `a` switches, each with `p` servers and `h` links to other groups."""

    a: int
    p: int
    h: int
    groups: int

    def group_pairs(self, *, every_port: bool) -> Iterator[tuple[int, int]]:
        """The groups at the ends of each link between groups. Every pair gets the same number; with
        `every_port`, remaining links join each group to the groups 1, 2, ... further on, and to the
        opposite one."""
        if self.groups < 2:
            return
        ports = self.a * self.h
        most = ports // (self.groups - 1)
        for a, b in combinations(range(self.groups), 2):
            for _ in range(most):
                yield a, b
        if not every_port:
            return
        left = ports - most * (self.groups - 1)
        for further in range(1, left // 2 + 1):
            for group in range(self.groups):
                yield group, (group + further) % self.groups
        if left % 2 and self.groups % 2 == 0:
            for group in range(self.groups // 2):
                yield group, group + self.groups // 2


# parameters: one choice of the generator each, with the papers' names
def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    server_gbps: float | None = None,
    p: int | None = None,
    a: int | None = None,
    h: int | None = None,
    groups: int | None = None,
    switches_per_chassis: int = 1,
    every_port: bool = False,
    detours: bool = False,
) -> Topology:
    """A Dragonfly with `p` servers on a switch (default: the smallest sufficient p, balanced).

    `a` defaults to 2p, `h` to p, `groups` to the fewest that are enough. Every link has
    `server_gbps` (default: degree x link rate). Where a group's ports do not divide evenly among
    the other groups, the rest stay dark or, with `every_port`, join some groups again.
    `switches_per_chassis` consecutive switches of a group count as one for cost and cables. Links
    inside a group are DACs. With `detours`, packets that choose their links at packet level go
    through a third group where the queues of their switch are shorter (UGAL-L). `demand` and `seed`
    change nothing. Raises DocumentError for an invalid cluster and ValueError for a size that does
    not fit.
    """
    wires = Wires.of(cluster, pair_tables=False)
    shape = _shape_of(cluster.servers, a, p, h, groups)
    if switches_per_chassis < 1 or shape.a % switches_per_chassis:
        raise ValueError(
            f"switches_per_chassis: {switches_per_chassis} does not divide the {shape.a} switches "
            "of a group"
        )
    gbps = link_gbps_of(cluster, server_gbps)
    first = cluster.servers
    for server in range(cluster.servers):
        wires.cable(server, first + server // shape.p, gbps)
    for group in range(shape.groups):
        for i, j in combinations(range(group * shape.a, (group + 1) * shape.a), 2):
            one_chassis = i // switches_per_chassis == j // switches_per_chassis
            medium: Medium = "inside" if one_chassis else "dac"
            wires.cable(first + i, first + j, gbps, medium=medium)
    used = [0] * shape.groups
    for pair in shape.group_pairs(every_port=every_port):
        ends = [first + group * shape.a + used[group] % shape.a for group in pair]
        wires.cable(ends[0], ends[1], gbps)
        for group in pair:
            used[group] += 1
    built = switched(
        "dragonfly",
        cluster,
        wires,
        nodes=first + shape.groups * shape.a,
        switch_ports=shape.p + shape.a - 1 + shape.h,
    )
    return replace(built, channel_rule=_detour_rule(built, shape)) if detours else built


def _detour_rule(built: Topology, shape: DragonflyShape) -> ChannelRule:
    """Detours over any group, with one more channel at every hop: enough for two shortest paths."""
    per_group = shape.a * shape.p
    first = built.servers
    groups = tuple(
        (
            *range(group * per_group, min((group + 1) * per_group, built.servers)),
            *range(first + group * shape.a, first + (group + 1) * shape.a),
        )
        for group in range(shape.groups)
    )
    rule = every_hop_rule(built)
    return replace(rule, channels=2 * rule.channels, detours=groups)


def _shape_of(
    servers: int, a: int | None, p: int | None, h: int | None, groups: int | None
) -> DragonflyShape:
    """The sizes with defaults; ValueError for sizes below 1 or too small."""
    least = smallest_p(servers)
    if p is None:
        p = least
    elif a is None and h is None and (p < 1 or most_servers(p) < servers):
        raise ValueError(f"p: {p} is not enough for {servers} servers; use {least}")
    a = 2 * p if a is None else a
    h = p if h is None else h
    for name, size in (("a", a), ("p", p), ("h", h)):
        if size < 1:
            raise ValueError(f"{name}: {size} is not at least 1")
    groups = math.ceil(servers / (a * p)) if groups is None else groups
    if not servers <= groups * a * p or groups > a * h + 1:
        raise ValueError(
            f"groups: {groups} groups of {a} x {p} servers are not enough for {servers} servers, "
            f"or more than the {a * h + 1} that {a} x {h} links reach"
        )
    return DragonflyShape(a, p, h, groups)


def most_servers(p: int) -> int:
    """p a g for a = 2p switches in each of g = a p + 1 groups."""
    return p * 2 * p * (2 * p * p + 1)


def smallest_p(servers: int) -> int:
    p = 1
    while most_servers(p) < servers:
        p += 1
    return p
