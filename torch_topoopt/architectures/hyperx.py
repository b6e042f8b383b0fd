"""HyperX (Ahn et al., SC 2009): switches in a grid, all those of one row or column joined directly.

Servers are attached to the switches by one link each. Routes are minimal: one hop per dimension.
"""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import Topology, Wires, link_gbps_of, switched

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
    wires = Wires.of(cluster)
    shape = default_shape(cluster.servers) if shape is None else shape
    if min(shape, default=0) < 1:
        raise ValueError(f"shape: {shape} is not a list of dimensions of at least 1")
    gbps = link_gbps_of(cluster, server_gbps)
    switches = math.prod(shape)
    terminals = math.ceil(cluster.servers / switches)
    first = cluster.servers
    for server in range(cluster.servers):
        wires.cable(server, first + server // terminals, gbps)
    places = list(product(*(range(size) for size in shape)))
    for (i, a), (j, b) in combinations(enumerate(places), 2):
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1:
            wires.cable(first + i, first + j, gbps)
    return switched(
        "hyperx",
        cluster,
        wires,
        nodes=first + switches,
        switch_ports=terminals + sum(size - 1 for size in shape),
    )


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
