"""The time and the loads of a demand alone, without a model, on the schedules that run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import BYTES_PER_GBPS, Demand
from torch_topoopt.search.lowering import lower_network
from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from torch_topoopt.plan import Cluster, GroupDemand, Network
    from torch_topoopt.topology.best.network_search import NetworkSearch
    from torch_topoopt.user_functions import UserFunction


def demand_seconds(cluster: Cluster, demand: Demand, network: Network) -> float:
    """Seconds of the AllReduces, one after another and each as the backend runs it, and of the
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


def fastest_for(
    mode: str | UserFunction, cluster: Cluster, demand: Demand, search: NetworkSearch
) -> NetworkSearch:
    """`search`, in mode best for the network with the least `demand_seconds`."""
    if mode != "best":
        return search
    return replace(search, price=partial(demand_seconds, cluster, demand))


def reduced_bytes(
    cluster: Cluster, network: Network
) -> Callable[[GroupDemand], NDArray[np.float64]]:
    """Gives the bytes of an AllReduce on each link, as the backend runs it."""
    core = lower_network(cluster, network, schedules=True)

    def of_group(group: GroupDemand) -> NDArray[np.float64]:
        if len(group.servers) < 2:
            return np.zeros(len(network.links))
        return np.array(core.all_reduce_link_bytes(group.servers, group.size_bytes))

    return of_group
