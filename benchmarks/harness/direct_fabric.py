"""The plans of the benchmarks' fabrics, and questions about them.

`topoopt fabric up` wires such a plan as well, and `topoopt fabric verify` measures all its links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.torus_network import torus_cluster, torus_network

if TYPE_CHECKING:
    from torch_topoopt.plan import Link


def make_plan(servers: int, degree: int, gbps: float) -> Plan:
    """A data-parallel plan whose network TopologyFinder chose."""
    cluster = Cluster(servers, degree, gbps)
    demand = Demand((GroupDemand(tuple(range(servers)), 1 << 20),), ())
    network = find_network(cluster, demand)
    return Plan.of_network(cluster, network, demand, model="benchmark")


def make_torus(rows: int, columns: int, gbps: float) -> Plan:
    """A data-parallel plan of a torus."""
    cluster = torus_cluster(rows, columns, gbps)
    network = torus_network(cluster, rows, columns)
    return Plan.of_network(cluster, network, Demand((), ()), model="benchmark")


def sampled_links(plan: Plan, count: int) -> list[Link]:
    """`count` links, one of each kind of stride first."""
    strides: dict[int, list[Link]] = {}
    for link in plan.network.links:
        stride = (link.target - link.source) % plan.cluster.servers
        strides.setdefault(stride, []).append(link)
    turns = [pairs[turn % len(pairs)] for turn in range(count) for pairs in strides.values()]
    return list(dict.fromkeys(turns))[:count]
