"""The speed of a wiring, and the effect of one more port or a switch.

Times are those of the links: the bytes of the busiest link over its rate, and the signal latency of
every step. Software overhead is the same for every wiring; a job measures it when it starts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import networkx as nx
import numpy as np

from torch_topoopt.architectures import ideal_switch, topoopt
from torch_topoopt.architectures.clos import RADIX
from torch_topoopt.architectures.topology import Wires, switched
from torch_topoopt.comparison.cable_prices import cable_cost
from torch_topoopt.comparison.cost import capital_cost
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.plan import AllToAll, Cluster, Demand, GroupDemand, PairTable
from torch_topoopt.plan.units import counted
from torch_topoopt.sim.demand_seconds import fastest_for
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand
from torch_topoopt.topology.routing.hop_counts import hop_matrix
from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Network, Plan
    from torch_topoopt.search.strategies import Strategy
    from torch_topoopt.topology.best.network_search import NetworkSearch
    from torch_topoopt.topology.find_network import Mode
    from torch_topoopt.user_functions import UserFunction

Kind = Literal["cables", "switch"]


@dataclass(frozen=True)
class Times:
    """Seconds of collectives over all servers, one entry for each requested size."""

    all_reduce_s: tuple[float, ...]
    all_to_all_s: tuple[float, ...]


@dataclass(frozen=True)
class CablingOption:
    """One way to join the servers. `cost` is in dollars by the TopoOpt paper's prices, `cable_cost`
    by the HammingMesh paper's (None: parts without a price); `iteration_s` is that of the model, if
    there is one. `disconnecting` cables are those whose loss cuts off a server; on a switch they
    are the cables of servers with one port."""

    name: str
    kind: Kind
    ports: int
    cables: int
    times: Times
    iteration_s: float | None
    cost: float | None
    cable_cost: float | None
    disconnecting: int


def cluster_for(servers: int, ports: int, gbps: float, accelerator: str = "cpu-core") -> Cluster:
    """The servers with so many ports each; more ports than peers make parallel cables.

    Raises ValueError for numbers that cannot be cabled.
    """
    if servers < 2:
        raise ValueError(f"servers: must be at least 2 (got {servers})")
    if ports < 1:
        raise ValueError(f"degree: must be at least 1 (got {ports})")
    if ports == 1 and servers > 2:
        raise ValueError(
            f"degree: 1 port of each server joins two of them, not {servers}; a ring needs 2, and "
            "with 1 there has to be a switch"
        )
    return Cluster(
        servers, ports, gbps, accelerator=accelerator, parallel_links=ports > servers - 1
    ).validate()


def wire(cluster: Cluster, mode: Mode | UserFunction, search: NetworkSearch) -> Network:
    """TopologyFinder's network for training in general: an AllReduce of 1 GB and an all-to-all of
    100 MB from each server, as `topoopt topology` wires without a demand."""
    demand = default_demand(cluster.servers)
    priced = fastest_for(mode, cluster, demand, search)
    return find_network(cluster, demand, mode=mode, search=priced)


def cable_pairs(network: Network) -> Counter[tuple[int, int]]:
    """(lower server, higher server) -> the number of cables between them."""
    return Counter((k.source, k.target) for k in network.links if k.source < k.target)


def disconnecting_pairs(servers: int, network: Network) -> list[tuple[int, int]]:
    """Pairs of servers whose one cable may not be lost: the bridges of the graph."""
    pairs = cable_pairs(network)
    graph: nx.Graph[int] = nx.Graph(pairs.keys())
    graph.add_nodes_from(range(servers))
    return sorted(
        (min(a, b), max(a, b)) for a, b in nx.bridges(graph) if pairs[min(a, b), max(a, b)] == 1
    )


def times_on_cables(cluster: Cluster, network: Network, sizes: Sequence[float]) -> Times:
    """Seconds of collectives over all servers, with buffers of each of `sizes` in bytes.

    AllReduce: 2 (n - 1) steps along the plan's rings. All-to-all: size / n from each to each other
    over the plan's routes, all at once.
    """
    count = cluster.servers
    everyone = tuple(range(count))
    rates = np.array([cluster.gbps_of(link) for link in network.links]) * 1e9 / 8
    ring = Demand((GroupDemand(everyone, 1_000_000),), ())
    uniform = Demand((), PairTable((AllToAll(everyone, 1_000_000),)))
    per_byte = [
        float((link_bytes(network, traffic_matrix(network, demand, count)) / rates).max()) / 1e6
        for demand in (ring, uniform)
    ]
    hops = hop_matrix(count, network.links)
    rings = next(g.rings for g in network.groups if len(g.servers) == count)
    longest = max(int(hops[a, b]) for one in rings for a, b in one.hops)
    steps_s = 2 * (count - 1) * longest * cluster.link_latency_s
    farthest_s = int(hops.max()) * cluster.link_latency_s
    return Times(
        tuple(steps_s + size * per_byte[0] for size in sizes),
        tuple(farthest_s + size / count * per_byte[1] for size in sizes),
    )


def times_on_switch(servers: int, gbps: float, latency_s: float, sizes: Sequence[float]) -> Times:
    """The same on one non-blocking switch, to which each server sends `gbps`; a path through it has
    the latency of one hop."""
    sent = [size * (servers - 1) / servers / (gbps * 1e9 / 8) for size in sizes]
    return Times(
        tuple(2 * (servers - 1) * latency_s + 2 * seconds for seconds in sent),
        tuple(latency_s + seconds for seconds in sent),
    )


def on_cables(
    cluster: Cluster, network: Network, sizes: Sequence[float], plan: Plan | None = None
) -> CablingOption:
    """The servers on cables, wired as `network`; `plan` is the model's, if there is one."""
    topology = topoopt.topology_of(cluster, network)
    cost = capital_cost(topology, cluster)
    return CablingOption(
        f"{counted(cluster.degree, 'port')}, cabled",
        "cables",
        cluster.degree,
        len(network.links) // 2,
        times_on_cables(cluster, network, sizes),
        plan.prediction.iteration_s if plan is not None else None,
        None if cost is None else cost.total,
        cable_cost(topology, cluster),
        len(disconnecting_pairs(cluster.servers, network)),
    )


def one_switch(cluster: Cluster) -> Topology:
    """A switch with a port for every port of every server; raises DocumentError as Topology."""
    wires = Wires.of(cluster)
    for server in range(cluster.servers):
        wires.cable(server, cluster.servers, cluster.link_gbps, cluster.degree)
    return switched(
        "one-switch",
        cluster,
        wires,
        nodes=cluster.servers + 1,
        switch_ports=cluster.servers * cluster.degree,
        server_ports=cluster.degree,
    )


def on_switch(
    cluster: Cluster,
    ports: int,
    sizes: Sequence[float],
    job: tuple[OpGraph, Strategy, int] | None = None,
) -> CablingOption:
    """The servers of `cluster` on a switch that never blocks, with `ports` ports each.

    Up to 64 ports it is one switch, priced by its ports in use; above, it costs what the
    full-bisection fat-tree of that rate does, as everywhere in the comparison. `job`: a model, its
    strategy and micro-batches. Raises ValueError as `predict_architecture`.
    """
    few = replace(cluster, degree=ports, parallel_links=True)
    ideal = ideal_switch.build(few)
    is_one = ports * cluster.servers <= RADIX
    priced = one_switch(few) if is_one else ideal
    iteration_s = None
    if job is not None:
        graph, strategy, micro_batches = job
        iteration_s = predict_architecture(
            ideal, graph, few, strategy, micro_batches=micro_batches
        ).iteration_s
    cost = capital_cost(priced, few)
    return CablingOption(
        f"{counted(ports, 'port')}, {'switch' if is_one else 'fat-tree'}",
        "switch",
        ports,
        ports * cluster.servers,
        times_on_switch(cluster.servers, ports * cluster.link_gbps, cluster.link_latency_s, sizes),
        iteration_s,
        None if cost is None else cost.total,
        cable_cost(priced, few),
        cluster.servers if ports == 1 else 0,
    )
