"""The networks that mode `best` chooses from: rings and links, for several degree splits."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

from torch_topoopt.plan import Group, Network, Ring
from torch_topoopt.topology.group_rings import merge_groups, ring_counts, ring_traffic_bytes
from torch_topoopt.topology.hop_counts import hop_matrix
from torch_topoopt.topology.multi_hop_rings import short_ring
from torch_topoopt.topology.pair_bytes import demand_matrix, pairs_of
from torch_topoopt.topology.ring_unions import RingUnion, anneal_for_pairs, search_rings
from torch_topoopt.topology.routing import group_bytes, plan_routes, ring_pair_bytes
from torch_topoopt.topology.wiring import Wiring, ports_per_ring

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch_topoopt.plan import Cluster, Demand
    from torch_topoopt.topology.group_rings import Servers
    from torch_topoopt.topology.ring_unions import Ends, Order

_MOST_LISTED = 128  # pairs per server that get paths of their own
_MOST_WEIGHT = 1 << 40  # of all pairs together; the search counts hops times weight in 64 bits


def candidates(
    cluster: Cluster, demand: Demand, *, seed: int, work: int, paths: int
) -> Iterator[Network]:
    """Networks for `demand` on three servers or more; `work` is shared among them.

    First the rings that are best for a demand nobody knows, where they are for the whole cluster.
    Then, for every number of ports that the AllReduce groups together may take (the paper's split
    is one of these), rings and links annealed for the model-parallel pairs.
    """
    matrix = demand_matrix(demand, cluster.servers)
    pairs = pairs_of(matrix)
    whole = tuple(range(cluster.servers))
    splits = _splits(cluster, demand)
    build = _Builder(cluster, demand, pairs, paths)
    alike = len(pairs) == matrix.size - len(matrix) and len(set(pairs.values())) == 1
    only_whole = all(not count or g == whole for split in splits for g, count in split.items())
    # Without pairs or with all of them alike, the rings for an unknown demand are those for it.
    tasks = 0 if only_whole and (not pairs or alike) else len(splits)
    union: RingUnion | None = None
    if only_whole:
        union = search_rings(
            cluster.servers,
            cluster.degree // ports_per_ring(cluster, cluster.servers),
            duplex=cluster.ports == "duplex",
            seed=seed,
            work=work // (1 + tasks),
        )
        network = build.network({whole: union.rings}, ())
        assert network is not None  # a ring joins all servers
        yield network
    if not tasks:
        return
    weights = _weights(cluster.servers, pairs)
    for i, split in enumerate(splits):
        start, links = _start(cluster, split, union, random.Random(f"{seed} {i}"))
        orders = [order for members in start.values() for order in members]
        found = anneal_for_pairs(
            cluster.servers,
            orders,
            links,
            weights,
            duplex=cluster.ports == "duplex",
            seed=seed,
            work=work // (1 + tasks),
        )
        left = list(found.rings)
        rings_of = {group: tuple(left.pop(0) for _ in members) for group, members in start.items()}
        network = build.network(rings_of, found.links)
        if network is not None:
            yield network


def _splits(cluster: Cluster, demand: Demand) -> list[dict[Servers, int]]:
    """Different ways to share ports: rings per group, most ports for AllReduce first."""
    demanded = merge_groups(cluster, demand)
    asking = [group.servers for group in demanded if ring_traffic_bytes(group)]
    splits: list[dict[Servers, int]] = []
    for degree in range(cluster.degree, 0, -1):
        counts = ring_counts(cluster, demanded, degree)
        _grant_more(cluster, counts, asking, degree)
        if counts not in splits:
            splits.append(counts)
    if not asking:
        splits.append(dict.fromkeys(splits[0], 0))
    return splits


def _grant_more(
    cluster: Cluster, counts: dict[Servers, int], asking: Sequence[Servers], degree: int
) -> None:
    """Gives ports that are left out of `degree` to further rings: here any order is one, so a group
    does not run out of them as it runs out of strides."""
    left = [degree] * cluster.servers
    for servers, count in counts.items():
        for server in servers:
            left[server] -= count * ports_per_ring(cluster, len(servers))
    granted = True
    while granted:
        granted = False
        for servers in asking:
            cost = ports_per_ring(cluster, len(servers))
            if min(left[server] for server in servers) >= cost:
                counts[servers] += 1
                granted = True
                for server in servers:
                    left[server] -= cost


def _weights(servers: int, pairs: Mapping[Ends, int]) -> list[int]:
    """What a hop costs per pair: its bytes, scaled, and a little for pairs without bytes."""
    cells = servers * servers
    largest = min(_MOST_WEIGHT // cells, (1 << 50) // cells // servers) - 1
    most = max(pairs.values(), default=1)
    weights = [1] * cells
    for (source, target), size_bytes in pairs.items():
        weights[source * servers + target] += round(size_bytes / most * largest)
    return weights


def _start(
    cluster: Cluster,
    split: Mapping[Servers, int],
    union: RingUnion | None,
    chooser: random.Random,
) -> tuple[dict[Servers, list[Order]], list[Ends]]:
    """Rings of every group, and links over all ports that are left."""
    whole = tuple(range(cluster.servers))
    duplex = cluster.ports == "duplex"
    orders: dict[Servers, list[Order]] = {}
    links: list[Ends] = []
    free = [cluster.degree] * cluster.servers
    for group, count in split.items():
        orders[group] = []
        for i in range(count):
            order = list(group)
            chooser.shuffle(order)
            known = union is not None and group == whole
            orders[group].append(union.rings[i] if known and union else tuple(order))
        for server in group:
            free[server] -= count * ports_per_ring(cluster, len(group))
    if union is not None:  # what the union has beyond these rings is a good start for the links
        for ring in union.rings[split[whole] :]:
            links += pairwise((*ring, ring[0]))
            free = [ports - ports_per_ring(cluster, len(whole)) for ports in free]
    return orders, links + _joined(free, duplex=duplex)


def _joined(free: list[int], *, duplex: bool) -> list[Ends]:
    """Free ports of different servers in pairs; an end that finds none is (server, -1)."""
    ends = [server for server, ports in enumerate(free) for _ in range(ports)]
    half = len(ends) // 2
    if duplex:
        met = list(zip(ends[:half], ends[half:], strict=False))
        links = [pair for pair in met if pair[0] != pair[1]]
        lone = [a for a, b in met if a == b for _ in range(2)] + ends[2 * half :]
        return links + [(server, -1) for server in lone]
    links = []
    for source, target in zip(ends, ends[half:] + ends[:half], strict=True):
        links += [(source, target)] if source != target else [(source, -1), (-1, target)]
    return links


class _Builder:
    """Turns orders and links into a Network with routes for the demand."""

    def __init__(
        self, cluster: Cluster, demand: Demand, pairs: Mapping[Ends, int], paths: int
    ) -> None:
        self._cluster = cluster
        self._demanded = merge_groups(cluster, demand)
        self._sizes = group_bytes(demand)
        self._pairs = pairs
        self._paths = paths

    def network(
        self, rings_of: Mapping[Servers, tuple[Order, ...]], links: tuple[Ends, ...]
    ) -> Network | None:
        """None if the links do not connect the cluster."""
        cluster = self._cluster
        wiring = Wiring(cluster)
        for orders in rings_of.values():
            for order in orders:
                wiring.add_stride(_from_lowest(order), 1)
        for source, target in sorted(_lower_first(links, wiring.duplex)):
            wiring.connect(source, target)
        distances = hop_matrix(cluster.servers, wiring.links)
        if (distances < 0).any():
            return None
        groups = tuple(
            self._group(group.servers, rings_of.get(group.servers, ()), distances.tolist())
            for group in sorted(self._demanded, key=lambda g: len(g.servers) < cluster.servers)
        )
        # Several paths for each pair load links more evenly than a forwarding table, but a large
        # network in which most pairs send something has too many of them.
        dense = len(self._pairs) > _MOST_LISTED * cluster.servers
        routes = plan_routes(
            cluster.servers,
            wiring.links,
            ring_pair_bytes(groups, self._sizes),
            {} if dense else self._pairs,
            paths=self._paths,
        )
        return Network(tuple(wiring.links), groups, routes)

    def _group(
        self, servers: Servers, orders: tuple[Order, ...], distances: list[list[int]]
    ) -> Group:
        if len(servers) == 1:
            return Group(servers, ())
        orders = tuple(map(_from_lowest, orders)) or (short_ring(servers, distances),)
        if self._cluster.ports == "duplex" and len(servers) > 2:
            orders = tuple(o for order in orders for o in (order, (order[0], *order[:0:-1])))
        return Group(servers, tuple(Ring(order, 1 / len(orders)) for order in orders))


def _from_lowest(order: Order) -> Order:
    at = order.index(min(order))
    return (*order[at:], *order[:at])


def _lower_first(links: tuple[Ends, ...], duplex: bool) -> list[Ends]:
    joined = [(a, b) for a, b in links if a >= 0 and b >= 0]
    return [(min(pair), max(pair)) for pair in joined] if duplex else joined
