"""Rail-only (Wang et al., 2023): port i of every server goes to rail switch i; nothing joins rails.

Inside a server its own interconnect joins the accelerators, so any of them reaches any rail. Here a
server is one node, so its traffic is spread over its rails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.architectures.topology import Topology, Wires, switched

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand


def build(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """`degree` rail switches with one port of the link rate for every server.

    `demand` and `seed` change nothing. Raises DocumentError for an invalid cluster.
    """
    wires = Wires.of(cluster)
    for server in range(cluster.servers):
        for rail in range(cluster.degree):
            wires.cable(server, cluster.servers + rail, cluster.link_gbps)
    return switched(
        "rail-only",
        cluster,
        wires,
        nodes=cluster.servers + cluster.degree,
        switch_ports=cluster.servers,
        server_ports=cluster.degree,
    )
