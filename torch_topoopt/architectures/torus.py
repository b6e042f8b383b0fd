"""Torus: servers in a grid with wrap-around, degree/2 dimensions (HammingMesh paper, section 3).

AllReduce runs on Hamiltonian cycles in both directions. In two dimensions there are two without a
common cable, so all four links of a server carry it; in others there is one.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import (
    ChannelRule,
    Medium,
    ServerGrid,
    Topology,
    Wires,
    direct,
    rank_order,
)
from torch_topoopt.plan.network import rings_of
from torch_topoopt.topology.finder.fixed_network import hamiltonian_cycle
from torch_topoopt.topology.finder.torus_cycles import disjoint_cycles, has_disjoint_cycles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.architectures.topology import NodeLink
    from torch_topoopt.plan import Cluster, Demand, Ring

Dimensions = tuple[int, ...]


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    dimensions: Dimensions | None = None,
    board: Dimensions | None = None,
    planes: int = 1,
) -> Topology:
    """A torus of `dimensions` (default: the one of at most degree/2 with the least diameter).

    A dimension of two joins its servers by two cables, or by one if ports are short. `board` is a
    board's size along each dimension: its traces join its servers, DACs all others. `planes` equal
    tori divide the ports; the built one has the rates of all. `demand` and `seed` change nothing.
    Raises DocumentError for an invalid cluster, and ValueError for dimensions that do not multiply
    to the number of servers, or that need more ports than it has, boards that do not divide them,
    or no plane.
    """
    wires = Wires.of(cluster, pair_tables=False)
    if planes < 1:
        raise ValueError(f"planes: {planes} is not at least 1")
    degree = cluster.degree // planes
    if dimensions is None:
        dimensions = default_dimensions(cluster.servers, degree // 2)
    twofold = _cables_of_two(cluster.servers, degree, dimensions)
    sides = tuple(1 for _ in dimensions) if board is None else board
    if len(sides) != len(dimensions) or any(
        side < 1 or size % side for side, size in zip(sides, dimensions, strict=True)
    ):
        raise ValueError(f"board: {sides} does not divide the dimensions {dimensions}")
    gbps = planes * cluster.link_gbps
    strides = [math.prod(dimensions[i + 1 :]) for i in range(len(dimensions))]
    for place in product(*(range(size) for size in dimensions)):
        server = sum(x * stride for x, stride in zip(place, strides, strict=True))
        for x, size, stride, side in zip(place, dimensions, strides, sides, strict=True):
            if size > 2 or (size == 2 and x == 0):
                count = twofold if size == 2 else 1
                medium: Medium = "dac" if (x + 1) % side == 0 else "trace"
                other = server + ((x + 1) % size - x) * stride
                wires.cable(server, other, gbps, count, medium)
    flat = len(dimensions) == 2
    return direct(
        "torus",
        cluster,
        wires,
        rings=_rings(dimensions, wires, twofold),
        channel_rule=_north_last_rule(dimensions, wires.links) if flat else None,
        grid=ServerGrid(*dimensions, *sides) if flat else None,
    )


def _north_last_rule(dimensions: Dimensions, links: Sequence[NodeLink]) -> ChannelRule:
    """A torus of two dimensions as a HammingMesh of one board: north-last between its edges, and
    one more virtual channel around each (HammingMesh paper, section IV-C).

    After the edge around to the north, only north is allowed, too: otherwise all packets would turn
    in the row behind it.
    """
    rows, columns = dimensions
    raises: list[int] = []
    last: list[int] = []
    for i, link in enumerate(links):
        row, column = divmod(link.source, columns)
        to_row, to_column = divmod(link.target, columns)
        if abs(row - to_row) > 1 or abs(column - to_column) > 1:
            raises.append(i)
        if to_row == row - 1 or (row == 0 and to_row == rows - 1 > 1):
            last.append(i)
    return ChannelRule(3, tuple(raises), tuple(last))


def default_dimensions(servers: int, most: int) -> Dimensions:
    """At most `most` factors of `servers`, in descending order, with the least diameter."""
    options = list(_factorisations(servers, servers, max(1, most)))
    return min(options, key=lambda sizes: (sum(size // 2 for size in sizes), len(sizes), sizes))


def _factorisations(servers: int, largest: int, count: int) -> list[Dimensions]:
    found: list[Dimensions] = [(servers,)] if servers <= largest else []
    if count > 1:
        for size in range(min(largest, servers - 1), 1, -1):
            if servers % size == 0:
                found += [(size, *r) for r in _factorisations(servers // size, size, count - 1)]
    return found


def _cables_of_two(servers: int, degree: int, dimensions: Dimensions) -> int:
    """Cables of a dimension of two; raises ValueError where there are too few ports at all."""
    text = " x ".join(map(str, dimensions))
    if min(dimensions, default=0) < 1 or math.prod(dimensions) != servers:
        raise ValueError(f"dimensions: {text} is not {servers} servers")
    twos = dimensions.count(2)
    longer = 2 * sum(1 for size in dimensions if size > 2)
    if (needed := longer + twos) > degree:
        raise ValueError(
            f"dimensions: {text} needs {needed} ports per server; the degree is {degree}"
        )
    return 2 if longer + 2 * twos <= degree else 1


def _rings(dimensions: Dimensions, wires: Wires, twofold: int) -> tuple[Ring, ...]:
    sizes = [size for size in dimensions if size > 1]
    servers = math.prod(sizes)
    if len(sizes) == 2 and (min(sizes) > 2 or twofold == 2) and has_disjoint_cycles(*sizes):
        return rings_of(disjoint_cycles(*sizes), both_ways=True)
    pairs = {(min(w.source, w.target), max(w.source, w.target)): 1.0 for w in wires.links}
    if servers > 2:
        cycle = hamiltonian_cycle(servers, pairs)
        if cycle:
            return rings_of([cycle], both_ways=True)
    return rank_order(servers, both_ways=True)
