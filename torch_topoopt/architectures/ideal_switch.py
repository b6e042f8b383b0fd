"""Ideal switch (TopoOpt paper, section 5.1): one non-blocking electrical switch.

Each server has one link of degree x link rate. No network of the same ports and rates carries more.
"""

from __future__ import annotations

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
) -> Topology:
    """A switch with a port of `server_gbps` (default: degree x link rate) for every server.

    A path through it has the latency of one hop, as in the planner's reference. `demand` and
    `seed` change nothing. Raises DocumentError for an invalid cluster.
    """
    cluster.validate(any_degree=True)
    gbps = link_gbps_of(cluster, server_gbps)
    wires = Wires(cluster.link_latency_s / 2)
    for server in range(cluster.servers):
        wires.cable(server, cluster.servers, gbps)
    return switched(
        "ideal-switch", cluster, wires, nodes=cluster.servers + 1, switch_ports=cluster.servers
    )
