"""Measures of a network: the figures by which topologies are compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import AllToAll, Demand, GroupDemand, PairTable
from torch_topoopt.topology.routing.hop_counts import hop_summary
from torch_topoopt.topology.routing.loads import hop_bytes, link_bytes, traffic_matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from torch_topoopt.plan import Cluster, Network

    ReducedBytes = Callable[[GroupDemand], NDArray[np.float64]]

DEFAULT_ALL_REDUCE_BYTES = 1_000_000_000
DEFAULT_ALL_TO_ALL_BYTES = 100_000_000  # that each server sends, to all others together


@dataclass(frozen=True)
class Figures:
    """Loads are bytes per iteration on a link; hops count links of the shortest paths.

    `bandwidth_tax` is bytes on links / bytes asked for. `all_reduce_over_bound` and
    `all_to_all_over_bound` are times on the network over the least that its ports allow, of an
    AllReduce over all servers and of an all-to-all alone; `moore_bound_hops` is the least mean of
    hops that any network of these ports can have.
    """

    mean_hops: float
    diameter: int
    moore_bound_hops: float
    max_link_load: float
    mean_link_load: float
    bandwidth_tax: float
    all_reduce_over_bound: float
    all_to_all_over_bound: float


def default_demand(servers: int) -> Demand:
    """One AllReduce of 1 GB over all servers, and 100 MB from each server to all others evenly."""
    everyone = tuple(range(servers))
    each = max(1, DEFAULT_ALL_TO_ALL_BYTES // max(1, servers - 1))
    return Demand(
        (GroupDemand(everyone, DEFAULT_ALL_REDUCE_BYTES),), PairTable((AllToAll(everyone, each),))
    )


def figures_of(
    cluster: Cluster, network: Network, demand: Demand, reduced: ReducedBytes | None = None
) -> Figures:
    """The figures of a valid network of at least two servers under `demand`.

    `reduced` gives the bytes of a group's AllReduce on each link; without it they are on the rings.
    The AllReduce bound is 2 (n - 1) / n of its bytes over all ports of a server, of the slowest one
    where they are not alike; an odd number of duplex ports in all leaves one server with one less.
    The all-to-all bound is what the ports carry if every byte crosses as
    many links as in the Moore bound, and all links are busy alike. Raises ValueError as
    `link_load_bytes` does.
    """
    count = cluster.servers
    traffic = traffic_matrix(network, demand, count)
    crossed = hop_bytes(network, traffic)
    loads = link_bytes(network, traffic)
    asked = float(traffic.sum())
    everyone = tuple(range(count))
    ring = Demand((GroupDemand(everyone, count),), ())  # n bytes: 2 (n - 1) sent by each server
    uniform = Demand((), PairTable((AllToAll(everyone, 1),)))
    ring_loads = link_bytes(network, traffic_matrix(network, ring, count))
    if reduced is not None:
        pairs = traffic_matrix(network, Demand((), demand.pairs), count)
        loads = link_bytes(network, pairs) + sum(map(reduced, demand.groups))
        crossed = loads
        ring_loads = reduced(GroupDemand(everyone, DEFAULT_ALL_REDUCE_BYTES))
        ring_loads *= count / DEFAULT_ALL_REDUCE_BYTES
    uniform_loads = link_bytes(network, traffic_matrix(network, uniform, count))
    hops = hop_summary(count, network.links)
    # rates and bandwidths of servers in units of the slowest port
    rates = np.array([cluster.gbps_of(link) for link in network.links]) / cluster.link_gbps
    server_rates = [cluster.server_gbps(server) / cluster.link_gbps for server in everyone]
    least = min(server_rates)
    if cluster.ports == "duplex" and cluster.port_gbps is None and cluster.degree % 2 and count % 2:
        least -= 1
    ring_time, uniform_time = (
        float((ring_loads / rates).max()),
        float((uniform_loads / rates).max()),
    )
    moore = moore_bound_hops(count, cluster.degree, duplex=cluster.ports == "duplex")
    return Figures(
        mean_hops=hops.mean,
        diameter=hops.diameter,
        moore_bound_hops=moore,
        max_link_load=float(loads.max()),
        mean_link_load=float(loads.mean()),
        bandwidth_tax=float(crossed.sum()) / asked if asked else 1.0,
        all_reduce_over_bound=ring_time * least / (2 * (count - 1)),
        all_to_all_over_bound=uniform_time * fmean(server_rates) / ((count - 1) * moore),
    )


def strides_of(cluster: Cluster, network: Network) -> tuple[int, ...] | None:
    """The strides p of a circulant network, in which every server s has a link to s + p modulo n.

    Ascending; once per port that all servers give to it. On duplex, where p and n - p are the two
    directions of the same cables, the smaller of them, once per cable. None for other networks.
    """
    count = cluster.servers
    links = Counter((link.source, (link.target - link.source) % count) for link in network.links)
    strides = sorted({stride for _, stride in links})
    found: list[int] = []
    for stride in strides:
        times = {links[server, stride] for server in range(count)}
        if len(times) > 1:
            return None
        if cluster.ports == "simplex" or 2 * stride <= count:
            found += [stride] * times.pop()
    return tuple(found)


def moore_bound_hops(servers: int, degree: int, *, duplex: bool) -> float:
    """Mean hops that no network of `servers` servers with `degree` ports can go below.

    At most `degree` servers are one hop away, and each of them leads on to `degree` others, or on
    duplex, where one port leads back, to one less.
    """
    left = servers - 1
    reached, hops, total = degree, 1, 0
    while left > 0:
        now = min(left, reached)
        if now < 1:
            return float("inf")
        total += hops * now
        left -= now
        hops += 1
        reached *= degree - 1 if duplex else degree
    return total / (servers - 1) if servers > 1 else 0.0
