"""The networks that mode `best` chooses from: rings and links, for several degree splits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from torch_topoopt.plan import Group, Network
from torch_topoopt.plan.network import hops_around
from torch_topoopt.topology.best.exact_links import exact_links
from torch_topoopt.topology.best.kautz_rings import kautz_links
from torch_topoopt.topology.best.ring_unions import (
    RingUnion,
    anneal_for_pairs,
    search_rings,
    search_rings_and_links,
)
from torch_topoopt.topology.finder.crossed_rings import (
    complete_rings,
    crossing_matching,
    crossing_of,
    group_of_rings,
)
from torch_topoopt.topology.finder.group_rings import (
    degree_split,
    merge_groups,
    ring_counts,
    ring_traffic_bytes,
)
from torch_topoopt.topology.finder.multi_hop_rings import short_ring
from torch_topoopt.topology.finder.port_allocator import PortAllocator, ports_per_ring
from torch_topoopt.topology.finder.unequal_rates import weighted_by_rate
from torch_topoopt.topology.routing.hop_counts import hop_matrix
from torch_topoopt.topology.routing.loads import hop_bytes, traffic_matrix
from torch_topoopt.topology.routing.pair_bytes import demand_matrix, pairs_of
from torch_topoopt.topology.routing.routes import group_bytes, plan_routes, ring_pair_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch_topoopt.plan import Cluster, Demand, Pair
    from torch_topoopt.topology.finder.crossed_rings import Order
    from torch_topoopt.topology.finder.group_rings import Servers

    _Rings = Mapping[Servers, Sequence[Order]]

_HEAT = 0.1  # of the first bytes times hops per server: where annealing starts
_MOST_LISTED = 128  # pairs per server that get paths of their own
_MOST_WEIGHT = 1 << 40  # of all pairs together; the search counts hops times weight in 64 bits


def candidates(
    cluster: Cluster, demand: Demand, *, seed: int, work: int, paths: int
) -> Iterator[Network]:
    """Networks for `demand` on three servers or more; they share `work`. In this order:

    1. on simplex ports, the generalised Kautz network;
    2. the best rings for an unknown demand, if they span the whole cluster;
    3. for every possible number of AllReduce ports (one is the paper's split), rings and links
       annealed for the model-parallel pairs;
    4. for the paper's split, the links of an exact matching, before and after annealing.

    If the links are a perfect matching, also with one that crosses a ring (`crossed_rings`).
    """
    matrix = demand_matrix(demand, cluster.servers)
    pairs = pairs_of(matrix)
    whole = tuple(range(cluster.servers))
    splits = _splits(cluster, demand)
    build = _NetworkBuilder(cluster, demand, pairs, paths)
    if kautz := _kautz(cluster):
        yield from build.networks({}, kautz)
    alike = len(pairs) == matrix.size - len(matrix) and len(set(pairs.values())) == 1
    only_whole = all(not count or g == whole for split in splits for g, count in split.items())
    # without pairs, or with equal ones, the rings for an unknown demand are the best ones
    tasks = 0 if only_whole and (not pairs or alike) else len(splits)
    union: RingUnion | None = None
    if only_whole:
        union = _union(cluster, seed, work // (2 + tasks) if tasks else work)
        yield from build.networks({whole: union.rings}, union.links)
        if cluster.ports == "duplex" and cluster.degree == cluster.servers - 1 and union.links:
            rings, crossing = complete_rings(cluster.servers)
            yield from build.networks({whole: rings}, crossing)
    if not tasks:
        return
    weights = _weights(cluster.servers, pairs)
    part = work // (2 + tasks)

    def annealed(rings_of: _Rings, links: Sequence[Pair], heat: float) -> Iterator[Network]:
        found = anneal_for_pairs(
            cluster.servers,
            [order for orders in rings_of.values() for order in orders],
            links,
            weights,
            duplex=cluster.ports == "duplex",
            seed=seed,
            work=part,
            heat=heat,
        )
        left = list(found.rings)
        changed = {group: [left.pop(0) for _ in orders] for group, orders in rings_of.items()}
        return build.networks(changed, found.links)

    for i, split in enumerate(splits):
        yield from annealed(*_start(cluster, split, union, random.Random(f"{seed} {i}")), _HEAT)
    degree = degree_split(cluster, merge_groups(cluster, demand), sum(pairs.values()))
    split = _split(cluster, demand, degree)
    rings_of, _ = _start(cluster, split, union, random.Random(f"{seed} exact"))
    links = _exact(cluster, rings_of, pairs)
    yield from build.networks(rings_of, links)
    yield from annealed(rings_of, links, _HEAT / 10)


def _kautz(cluster: Cluster) -> list[Pair]:
    """The generalised Kautz network, with the ports of a server's links to itself joined; none on
    duplex ports, or where it needs parallel links that the cluster does not allow."""
    links = kautz_links(cluster.servers, cluster.degree)
    free = [0] * cluster.servers
    for source, target in links:
        free[source] += source == target
    joined = _joined(free, free, duplex=False)
    links = [(a, b) for a, b in (*links, *joined) if a != b and min(a, b) >= 0]
    repeats = len(set(links)) < len(links) and not cluster.parallel_links
    return [] if cluster.ports == "duplex" or repeats else links


def _union(cluster: Cluster, seed: int, work: int) -> RingUnion:
    """Rings over all servers for an unknown demand, and links over the ports they leave."""
    duplex = cluster.ports == "duplex"
    rings, spare = divmod(cluster.degree, ports_per_ring(cluster, cluster.servers))
    if not spare:
        return search_rings(cluster.servers, rings, duplex=duplex, seed=seed, work=work)
    free = [spare] * cluster.servers
    links = _joined(free, free, duplex=duplex)
    return search_rings_and_links(cluster.servers, rings, links, seed=seed, work=work)


def _splits(cluster: Cluster, demand: Demand) -> list[dict[Servers, int]]:
    """Different ways to share ports: rings per group, most ports for AllReduce first."""
    splits: list[dict[Servers, int]] = []
    for degree in range(cluster.degree, 0, -1):
        counts = _split(cluster, demand, degree)
        if counts not in splits:
            splits.append(counts)
    if not any(map(ring_traffic_bytes, merge_groups(cluster, demand))):
        splits.append(dict.fromkeys(splits[0], 0))
    return splits


def _split(cluster: Cluster, demand: Demand, degree: int) -> dict[Servers, int]:
    """Rings per group out of `degree` ports per server."""
    demanded = merge_groups(cluster, demand)
    counts = ring_counts(cluster, demanded, degree)
    asking = [group.servers for group in demanded if ring_traffic_bytes(group)]
    _grant_more(cluster, counts, asking, degree)
    return counts


def _exact(cluster: Cluster, rings_of: _Rings, pairs: Mapping[Pair, int]) -> list[Pair]:
    """The links beside these rings that most bytes could use, and then the ports left over joined.

    A pair that is on a ring has its first link, so its next one counts half, as in Algorithm 1.
    """
    duplex = cluster.ports == "duplex"
    free = [cluster.degree] * cluster.servers
    joined: set[Pair] = set()
    for group, orders in rings_of.items():
        for order in orders:
            joined.update(hops_around(order))
        for server in group:
            free[server] -= len(orders) * ports_per_ring(cluster, len(group))
    if duplex:
        joined |= {(b, a) for a, b in joined}
    weights = {p: size if p in joined else 2 * size for p, size in pairs.items()}
    links = exact_links(weights, free, duplex=duplex)
    sent, received = list(free), list(free)
    for source, target in links:
        sent[source] -= 1
        (sent if duplex else received)[target] -= 1
    return [*links, *_joined(sent, received, duplex=duplex)]


def _grant_more(
    cluster: Cluster, counts: dict[Servers, int], asking: Sequence[Servers], degree: int
) -> None:
    """Gives the remaining ports of `degree` to further rings: any order is a ring here, so groups
    have enough of them, unlike strides."""
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


def _weights(servers: int, pairs: Mapping[Pair, int]) -> list[int]:
    """The cost of a hop per pair: its bytes, scaled, and a little for pairs without bytes."""
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
) -> tuple[dict[Servers, list[Order]], list[Pair]]:
    """Rings of every group, and links over all ports that are left."""
    whole = tuple(range(cluster.servers))
    duplex = cluster.ports == "duplex"
    orders: dict[Servers, list[Order]] = {}
    links: list[Pair] = []
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
    if union is not None:  # start from the union's other links
        for ring in union.rings[split[whole] :]:
            links += hops_around(ring)
            free = [ports - ports_per_ring(cluster, len(whole)) for ports in free]
        for end in (end for link in union.links for end in link if end >= 0):
            free[end] -= 1
        links += union.links
    return orders, links + _joined(free, free, duplex=duplex)


def _joined(free: list[int], receivers: list[int], *, duplex: bool) -> list[Pair]:
    """Free ports of different servers in pairs; an end that finds none is (server, -1).

    `free` are ports, or on simplex transmitters; `receivers` matter on simplex only.
    """
    ends = [server for server, ports in enumerate(free) for _ in range(ports)]
    half = len(ends) // 2
    if duplex:
        met = list(zip(ends[:half], ends[half:], strict=False))
        links = [pair for pair in met if pair[0] != pair[1]]
        lone = [a for a, b in met if a == b for _ in range(2)] + ends[2 * half :]
        return links + [(server, -1) for server in lone]
    links = []
    others = [server for server, ports in enumerate(receivers) for _ in range(ports)]
    for source, target in zip(ends, others[half:] + others[:half], strict=True):
        links += [(source, target)] if source != target else [(source, -1), (-1, target)]
    return links


class _NetworkBuilder:
    """Turns orders and links into networks with routes for the demand."""

    def __init__(
        self, cluster: Cluster, demand: Demand, pairs: Mapping[Pair, int], paths: int
    ) -> None:
        self._cluster = cluster
        self._demand = demand
        self._demanded = merge_groups(cluster, demand)
        self._sizes = group_bytes(demand)
        self._pairs = pairs
        self._paths = paths

    def networks(self, rings_of: _Rings, links: Sequence[Pair]) -> Iterator[Network]:
        """None if the links do not connect the cluster, one, or several where ports are not alike.

        Fast ports are used first. So the busiest links come first, either before or after the
        rings.
        """
        joined = sorted(_lower_first(links, self._cluster.ports == "duplex"))
        network = self._network(rings_of, joined, rings_first=True)
        if network is None:
            return
        yield network
        if joined and self._cluster.ports == "duplex":
            yield from self._crossed(rings_of, joined)
        if self._cluster.port_gbps is None or not joined:
            return
        sent = hop_bytes(network, traffic_matrix(network, self._demand, self._cluster.servers))
        both = sent + sent.T if self._cluster.ports == "duplex" else sent
        joined.sort(key=lambda pair: -both[pair])
        for rings_first in (True, False):
            network = self._network(rings_of, joined, rings_first=rings_first)
            assert network is not None  # the same links
            yield network

    def _crossed(self, rings_of: _Rings, joined: Sequence[Pair]) -> Iterator[Network]:
        """With links, a perfect matching, that cross a ring over all servers: as they are, or some
        of them exchanged; nothing where they are no such matching."""
        whole = tuple(range(self._cluster.servers))
        orders = list(rings_of.get(whole, ()))
        if not orders or sorted(end for pair in joined for end in pair) != list(whole):
            return
        at, crossed = crossing_of(orders, joined)
        if not crossed:
            taken = {(min(h), max(h)) for o in orders for h in hops_around(o)}
            joined = crossing_matching(orders[-1], taken, start=joined)
            at, crossed = crossing_of(orders, joined)
        if crossed:
            orders.append(orders.pop(at))
            network = self._network(
                {**rings_of, whole: orders}, joined, rings_first=True, crossed=crossed
            )
            if network is not None:
                yield network

    def _network(
        self,
        rings_of: _Rings,
        joined: Sequence[Pair],
        *,
        rings_first: bool,
        crossed: Sequence[Order] = (),
    ) -> Network | None:
        """`crossed` are further rings over all servers, through the last of theirs and links."""
        cluster = self._cluster
        wiring = PortAllocator(cluster)
        for part in ("rings", "links") if rings_first else ("links", "rings"):
            if part == "links":
                for source, target in joined:
                    wiring.connect(source, target)
                continue
            for orders in rings_of.values():
                for order in orders:
                    wiring.add_stride(_from_lowest(order), 1)
        distances = hop_matrix(cluster.servers, wiring.links)
        if (distances < 0).any():
            return None
        groups = tuple(
            self._group(
                group.servers,
                rings_of.get(group.servers, ()),
                distances.tolist(),
                crossed if len(group.servers) == cluster.servers else (),
            )
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
        network = Network(tuple(wiring.links), groups, routes)
        if cluster.port_gbps is None:
            return network
        return weighted_by_rate(cluster, network, self._demand, self._paths)

    def _group(
        self,
        servers: Servers,
        orders: Sequence[Order],
        distances: list[list[int]],
        crossed: Sequence[Order],
    ) -> Group:
        if len(servers) == 1:
            return Group(servers, ())
        orders = [_from_lowest(order) for order in orders] or [short_ring(servers, distances)]
        return group_of_rings(
            servers,
            orders,
            duplex=self._cluster.ports == "duplex",
            crossed=[_from_lowest(order) for order in crossed],
        )


def _from_lowest(order: Order) -> Order:
    at = order.index(min(order))
    return (*order[at:], *order[:at])


def _lower_first(links: Sequence[Pair], duplex: bool) -> list[Pair]:
    joined = [(a, b) for a, b in links if a >= 0 and b >= 0]
    return [(min(pair), max(pair)) for pair in joined] if duplex else joined
