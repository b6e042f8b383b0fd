"""The time of a demand alone, without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import BYTES_PER_GBPS, Demand
from torch_topoopt.search.lowering import lower_network
from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Network


def demand_seconds(cluster: Cluster, demand: Demand, network: Network) -> float:
    """Seconds of the AllReduces, one after another and each on its fastest schedule, and of the
    busiest link's bytes between pairs."""
    core = lower_network(cluster, network, schedules=True)
    reduced_s = sum(
        core.all_reduce_seconds(group.servers, group.size_bytes)
        for group in demand.groups
        if len(group.servers) > 1 and group.size_bytes
    )
    sent = link_bytes(network, traffic_matrix(network, Demand((), demand.pairs), cluster.servers))
    rates = np.array([cluster.gbps_of(link) for link in network.links]) * BYTES_PER_GBPS
    return reduced_s + float((sent / rates).max(initial=0.0))
