"""OCS-reconfig (TopoOpt paper, section 5.1 and Appendix E.4): circuits follow the demand.

Every 50 ms the pending bytes are measured and Algorithm 5 chooses new circuits. While an optical
circuit switch moves them, for 10 ms, nothing is sent.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.architectures.circuits import choose_circuits
from torch_topoopt.architectures.topology import NodeLink, Reconfiguration, Topology, rank_order

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand, Pair


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    window_s: float = 0.05,
    delay_s: float = 0.01,
    forwarding: bool = True,
) -> Topology:
    """Random initial circuits, and the rules of their changes.

    Servers relay with `forwarding`; without it bytes wait for a circuit of their own. `demand` is
    ignored: it is measured while a job runs. Raises DocumentError for an invalid cluster and
    ValueError for times that are negative or a window that is not above 0.
    """
    cluster.validate(any_degree=True)
    policy = Reconfiguration(window_s, delay_s, halve=True, forwarding=forwarding).validate()
    circuits = choose_circuits(
        cluster.servers, cluster.degree, {}, random.Random(seed), halve=True, connect=True
    )
    topology = of_circuits(cluster, circuits)
    name = "ocs-reconfig" if forwarding else "ocs-reconfig-no-forwarding"
    return replace(topology, architecture=name, reconfiguration=policy).validate()


def build_no_forwarding(
    cluster: Cluster, demand: Demand | None = None, *, seed: int = 0
) -> Topology:
    """The same without host forwarding (section 5.7, OCS-reconfig-noFW)."""
    return build(cluster, demand, seed=seed, forwarding=False)


def of_circuits(cluster: Cluster, circuits: list[Pair]) -> Topology:
    """The network of these circuits, through optical circuit switches."""
    return Topology(
        architecture="ocs-reconfig",
        servers=cluster.servers,
        nodes=cluster.servers,
        links=tuple(NodeLink(a, b, cluster.link_gbps, cluster.link_latency_s) for a, b in circuits),
        rings=rank_order(cluster.servers, both_ways=False),
        server_ports=cluster.degree,
        optics="ocs",
        duplex=False,
    )
