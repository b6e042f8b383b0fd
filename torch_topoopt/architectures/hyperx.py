"""HyperX (Ahn et al., SC 2009): switches in a grid, all those of one row or column joined directly.

Servers hang on the switches by one link each. Routes are minimal: one hop per dimension.
"""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import Topology, Wires, rank_order

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand

Shape = tuple[int, ...]


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    server_gbps: float | None = None,
    shape: Shape | None = None,
) -> Topology:
    """A HyperX of `shape` switches, with equally many servers on each (fewer on the last ones).

    Every link has `server_gbps` (default: degree x link rate). The default shape has two dimensions
    and the fewest switches with which a dimension has at least twice as many switches as one
    switch has servers: full bisection. `demand` and `seed` change nothing. Raises
    DocumentError for an invalid cluster and ValueError for a shape with a dimension below 1.
    """
    cluster.validate(any_degree=True)
    shape = default_shape(cluster.servers) if shape is None else shape
    if min(shape, default=0) < 1:
        raise ValueError(f"shape: {shape} is not a list of dimensions of at least 1")
    gbps = server_gbps or cluster.degree * cluster.link_gbps
    switches = math.prod(shape)
    terminals = math.ceil(cluster.servers / switches)
    wires = Wires(cluster.link_latency_s)
    first = cluster.servers
    for server in range(cluster.servers):
        wires.cable(server, first + server // terminals, gbps)
    places = list(product(*(range(size) for size in shape)))
    for (i, a), (j, b) in combinations(enumerate(places), 2):
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1:
            wires.cable(first + i, first + j, gbps)
    return Topology(
        architecture="hyperx",
        servers=cluster.servers,
        nodes=first + switches,
        links=tuple(wires.links),
        rings=rank_order(cluster.servers, both_ways=False),
        server_ports=1,
        switch_ports=terminals + sum(size - 1 for size in shape),
    ).validate()


def default_shape(servers: int) -> Shape:
    """Two dimensions, the fewest switches for full bisection, the squarest of those."""
    most = math.ceil(servers ** (1 / 2)) + 2
    options = [
        (a * b, b - a, (a, b))
        for a in range(1, most + 1)
        for b in range(a, most + 1)
        if 2 * math.ceil(servers / (a * b)) <= a or servers == 1
    ]
    return min(options)[2]
