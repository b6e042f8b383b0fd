"""The loads of a demand on the links of a network, and the distances of its servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.plan import PairTable, RouteTable
from torch_topoopt.topology.routing.hop_counts import hop_summary
from torch_topoopt.topology.routing.pair_bytes import demand_matrix
from torch_topoopt.topology.routing.routes import group_bytes, ring_pair_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.plan import Cluster, Demand, Network, Route


def traffic_matrix(network: Network, demand: Demand, servers: int) -> NDArray[np.float64]:
    """Bytes [source][target] that servers exchange: ring neighbours and MP together.

    A ring AllReduce of S bytes with share s among k members sends 2 (k - 1) / k * s * S bytes from
    each member to the next. Raises ValueError if `network` has no rings for a group of `demand`.
    """
    sizes = group_bytes(demand)
    known = {frozenset(group.servers) for group in network.groups}
    for members in sizes:
        if len(members) > 1 and members not in known:
            raise ValueError(f"demand: the network has no rings for group {sorted(members)}")
    matrix = demand_matrix(demand, servers).astype(np.float64)
    for (source, target), size_bytes in ring_pair_bytes(network.groups, sizes).items():
        matrix[source, target] += size_bytes
    return matrix


def hop_bytes(network: Network, traffic: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bytes [a][b] that cross the links from a to b when `traffic` takes the network's routes.

    Raises ValueError if a pair that exchanges bytes has neither link nor route.
    """
    servers = len(traffic)
    sent = np.zeros_like(traffic)
    rest = traffic.copy()
    routes = network.routes
    listed = routes.listed if isinstance(routes, RouteTable) else routes
    _add_listed(sent, rest, listed)
    if isinstance(routes, RouteTable):
        if routes.by_offset:
            _add_offsets(sent, rest, routes)
        if routes.next_hops:
            _add_walks(sent, rest, np.array(routes.next_hops))
    linked = np.zeros((servers, servers), dtype=bool)
    for link in network.links:
        linked[link.source, link.target] = True
    missing = np.argwhere((rest > 0) & ~linked)
    if len(missing):
        source, target = missing[0].tolist()
        raise ValueError(f"network: no link and no route from server {source} to {target}")
    return sent + rest


def _add_listed(
    sent: NDArray[np.float64], rest: NDArray[np.float64], routes: tuple[Route, ...]
) -> None:
    traffic = rest.copy()
    for route in routes:
        pair = route.servers[0], route.servers[-1]
        if size_bytes := traffic[pair] * route.weight:
            for hop in zip(route.servers, route.servers[1:], strict=False):
                sent[hop] += size_bytes
        rest[pair] = 0


def _add_offsets(sent: NDArray[np.float64], rest: NDArray[np.float64], table: RouteTable) -> None:
    """Routes by offset: all sources of one offset at once."""
    sources = np.arange(table.servers)
    alike: dict[int, float] = {}  # stride -> bytes on each of its links
    for offset, routes in table.offset_routes.items():
        targets = (sources + offset) % table.servers
        size_bytes = rest[sources, targets]
        rest[sources, targets] = 0
        for route in routes:
            if size_bytes.min() == size_bytes.max():  # so all links of a stride get the same
                for stride in route.strides:
                    alike[stride] = alike.get(stride, 0.0) + size_bytes[0] * route.weight
                continue
            here = sources
            for stride in route.strides:
                following = (here + stride) % table.servers
                sent[here, following] += size_bytes * route.weight
                here = following
    for stride, each in alike.items():
        sent[sources, (sources + stride) % table.servers] += each


def _add_walks(
    sent: NDArray[np.float64], rest: NDArray[np.float64], next_hops: NDArray[np.int64]
) -> None:
    """Next hops: all pairs at once, one hop after the other."""
    here, targets = np.nonzero(rest)
    size_bytes = rest[here, targets]
    rest[:] = 0
    while len(here):
        following = next_hops[here, targets]
        np.add.at(sent, (here, following), size_bytes)
        on_the_way = following != targets
        here, targets = following[on_the_way], targets[on_the_way]
        size_bytes = size_bytes[on_the_way]


def link_bytes(network: Network, traffic: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bytes on each link, in the order of `network.links`; parallel links share evenly.

    Weights split a pair's bytes over its routes. Raises ValueError as `hop_bytes` does.
    """
    sent = hop_bytes(network, traffic)
    ends = np.array([(link.source, link.target) for link in network.links], dtype=np.int64)
    ends = ends.reshape(-1, 2)
    parallel = np.zeros(sent.shape)
    np.add.at(parallel, (ends[:, 0], ends[:, 1]), 1)
    return sent[ends[:, 0], ends[:, 1]] / parallel[ends[:, 0], ends[:, 1]]


def demand_cost(cluster: Cluster, demand: Demand, network: Network) -> tuple[float, float, float]:
    """The quality of `network` for `demand`, less being better: three figures in order of weight.

    The bytes on its busiest link, which finishes last; the bytes on all links (bandwidth tax); and
    the mean hops between servers, for unknown demand. At unequal rates, bytes are divided by the
    link's rate in Gb/s.
    """
    loads: tuple[float, ...] = link_load_bytes(network, demand)
    if cluster.port_gbps is not None:
        rates = map(cluster.gbps_of, network.links)
        loads = tuple(size_bytes / gbps for size_bytes, gbps in zip(loads, rates, strict=True))
    hops = hop_summary(cluster.servers, network.links).mean if cluster.servers > 1 else 0.0
    return max(loads, default=0), sum(loads), hops


def _servers(network: Network, demand: Demand) -> int:
    """One more than the highest number of a server that either names."""
    pairs = demand.pairs
    listed = pairs.listed if isinstance(pairs, PairTable) else pairs
    sets: list[tuple[int, ...]] = [(link.source, link.target) for link in network.links]
    sets += [(pair.source, pair.target) for pair in listed]
    sets += [group.servers for group in network.groups]
    sets += [group.servers for group in demand.groups]
    if isinstance(pairs, PairTable):
        sets += [everyone.servers for everyone in pairs.all_to_all]
    return 1 + max(map(max, sets), default=0)


def link_load_bytes(network: Network, demand: Demand) -> tuple[int, ...]:
    """Bytes per iteration on each link, in the order of `network.links`, rounded to whole bytes.

    Raises ValueError if a group has no rings in `network` or a pair neither link nor route.
    """
    traffic = traffic_matrix(network, demand, _servers(network, demand))
    return tuple(round(size_bytes) for size_bytes in link_bytes(network, traffic).tolist())


def bandwidth_tax(demand: Demand, network: Network) -> float:
    """Bytes on links / bytes of demand (paper section 5.4): 1 if every byte crosses one link.

    Demand: every MP byte once, and 2 (k - 1) times the size of an AllReduce among k servers.
    1 for a demand of no bytes. Raises ValueError like `link_load_bytes`.
    """
    traffic = traffic_matrix(network, demand, _servers(network, demand))
    asked = float(traffic.sum())
    return float(hop_bytes(network, traffic).sum()) / asked if asked else 1.0


def mean_hops(network: Network, servers: int) -> float:
    """Mean of the least hops over all ordered pairs of `servers` servers; 0 for one server.

    Raises ValueError if some server cannot reach another.
    """
    return hop_summary(servers, network.links).mean


def diameter(network: Network, servers: int) -> int:
    """The largest of the least hops over all ordered pairs. Raises ValueError as `mean_hops`."""
    return hop_summary(servers, network.links).diameter
