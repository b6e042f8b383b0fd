"""What a demand puts on the links of a network, and how far its servers are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.topology.routing import all_hop_distances, ring_pair_bytes

if TYPE_CHECKING:
    from torch_topoopt.plan import Demand, Network
    from torch_topoopt.topology.shortest_paths import Pair


def pair_traffic_bytes(network: Network, demand: Demand) -> dict[Pair, float]:
    """Bytes that each ordered pair of servers exchanges: ring neighbours and MP together.

    Raises ValueError if `network` has no rings for a group of `demand`.
    """
    sizes: dict[frozenset[int], int] = {}
    known = {frozenset(group.servers) for group in network.groups}
    for group in demand.groups:
        members = frozenset(group.servers)
        if len(members) > 1 and members not in known:
            raise ValueError(f"demand: the network has no rings for group {sorted(members)}")
        sizes[members] = sizes.get(members, 0) + group.size_bytes
    traffic: dict[Pair, float] = dict(ring_pair_bytes(network.groups, sizes))
    for pair in demand.pairs:
        key = (pair.source, pair.target)
        traffic[key] = traffic.get(key, 0) + pair.size_bytes
    return traffic


def _exact_link_bytes(network: Network, demand: Demand) -> list[float]:
    hop_bytes: dict[Pair, float] = {}
    routes = network.routes_by_pair()
    for pair, size_bytes in pair_traffic_bytes(network, demand).items():
        if pair not in routes:
            raise ValueError(f"network: no link and no route from server {pair[0]} to {pair[1]}")
        for route in routes[pair]:
            for hop in zip(route.servers, route.servers[1:], strict=False):
                hop_bytes[hop] = hop_bytes.get(hop, 0) + size_bytes * route.weight
    parallel: dict[Pair, int] = {}
    for link in network.links:
        parallel[link.source, link.target] = parallel.get((link.source, link.target), 0) + 1
    return [
        hop_bytes.get((link.source, link.target), 0) / parallel[link.source, link.target]
        for link in network.links
    ]


def link_load_bytes(network: Network, demand: Demand) -> tuple[int, ...]:
    """Bytes per iteration on each link, in the order of `network.links`, rounded to whole bytes.

    A ring AllReduce of S bytes with share s among k members puts 2 (k - 1) / k * s * S on each hop.
    Weights split a pair's bytes over its routes; parallel links share a hop's bytes evenly.

    Raises ValueError if a group has no rings in `network` or a pair neither link nor route.
    """
    return tuple(round(size_bytes) for size_bytes in _exact_link_bytes(network, demand))


def bandwidth_tax(demand: Demand, network: Network) -> float:
    """Bytes on links / bytes asked for (paper section 5.4): 1 if every byte crosses one link.

    Asked for: every MP byte once, and 2 (k - 1) times the size of an AllReduce among k servers.
    1 for a demand of no bytes. Raises ValueError as `link_load_bytes` does.
    """
    asked = sum(pair_traffic_bytes(network, demand).values())
    return sum(_exact_link_bytes(network, demand)) / asked if asked else 1.0


def mean_hops(network: Network, servers: int) -> float:
    """Mean of the least hops over all ordered pairs of `servers` servers; 0 for one server.

    Raises ValueError if some server cannot reach another.
    """
    distances = _finite_distances(network, servers)
    return sum(map(sum, distances)) / (servers * (servers - 1)) if servers > 1 else 0.0


def diameter(network: Network, servers: int) -> int:
    """The largest of the least hops over all ordered pairs. Raises ValueError as `mean_hops`."""
    return max(map(max, _finite_distances(network, servers)))


def _finite_distances(network: Network, servers: int) -> list[list[int]]:
    distances = all_hop_distances(servers, network.links)
    for source, row in enumerate(distances):
        if -1 in row:
            raise ValueError(f"network: no path from server {source} to server {row.index(-1)}")
    return distances
