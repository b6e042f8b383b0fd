"""TopoOpt (sections 3 and 4.2): servers joined through patch panels by TopologyFinder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import NodeLink, NodePath, Topology
from torch_topoopt.plan import Demand, GroupDemand
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Optics
    from torch_topoopt.plan import Cluster, Network


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    network: Network | None = None,
    optics: Optics = "patch-panel",
) -> Topology:
    """TopologyFinder's network for `demand`, or an existing `network`.

    Without a demand: one AllReduce of all servers. `seed` changes nothing. Raises DocumentError for
    an invalid cluster, demand or network.
    """
    if network is None:
        network = find_network(cluster, demand or all_reduce_demand(cluster.servers))
    return topology_of(cluster, network, optics)


def all_reduce_demand(servers: int) -> Demand:
    """One AllReduce of all servers, of an arbitrary size above 0."""
    return Demand((GroupDemand(tuple(range(servers)), 1),), ())


def topology_of(cluster: Cluster, network: Network, optics: Optics = "none") -> Topology:
    """The network of a Plan as a Topology: same links, rings and routes."""
    everyone = tuple(range(cluster.servers))
    whole = [g.rings for g in network.groups if tuple(sorted(g.servers)) == everyone]
    return Topology(
        architecture="topoopt",
        servers=cluster.servers,
        nodes=cluster.servers,
        links=tuple(
            NodeLink(link.source, link.target, cluster.gbps_of(link), cluster.link_latency_s)
            for link in network.links
        ),
        rings=whole[0] if whole else (),
        group_rings=tuple(
            g.rings for g in network.groups if g.rings and tuple(sorted(g.servers)) != everyone
        ),
        server_ports=cluster.degree,
        paths=tuple(NodePath(route.servers, route.weight) for route in network.routes),
        optics=optics,
        duplex=cluster.ports == "duplex",
    ).validate()
