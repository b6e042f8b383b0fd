"""The AllReduce sub-topology: which group gets how many strides (paper section 4.2, steps 1, 2).

The paper gives one degree d_A to all servers and lets every group use it (Algorithm 1, lines 2-11).
Groups are arbitrary sets of servers here, overlapping or nested, so ports are counted per server.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING

from torch_topoopt.plan import Cluster, Demand, GroupDemand
from torch_topoopt.topology.finder.crossed_rings import crossing_matching
from torch_topoopt.topology.finder.port_allocator import PortAllocator, ports_per_ring
from torch_topoopt.topology.finder.select_permutations import select_permutations
from torch_topoopt.topology.finder.totient_perms import ring_order, totient_perms
from torch_topoopt.topology.routing.port_rates import ports_for, ring_ports_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Servers = tuple[int, ...]


def ring_traffic_bytes(group: GroupDemand) -> int:
    """Bytes that a ring AllReduce puts on its k hops in all: 2 (k - 1) times the reduced size."""
    return 2 * (len(group.servers) - 1) * group.size_bytes


def merge_groups(cluster: Cluster, demand: Demand) -> tuple[GroupDemand, ...]:
    """One GroupDemand per set of servers, members ascending, most traffic first.

    The same set twice is one group with the sum of the bytes. The whole cluster is always listed,
    with 0 bytes if nothing asks for it, for every job has collectives over all of its servers.
    Ties: the larger group first, then the lower servers.
    """
    sizes: dict[Servers, int] = {tuple(range(cluster.servers)): 0}
    for group in demand.groups:
        servers = tuple(sorted(group.servers))
        sizes[servers] = sizes.get(servers, 0) + group.size_bytes
    groups = [GroupDemand(servers, size_bytes) for servers, size_bytes in sizes.items()]
    return tuple(sorted(groups, key=lambda g: (-ring_traffic_bytes(g), -len(g.servers), g.servers)))


def degree_split(cluster: Cluster, groups: Sequence[GroupDemand], pair_bytes: int) -> int:
    """d_A, the ports per server for AllReduce (Algorithm 1, line 2); the others serve MP.

    max(1, ceil(d * AllReduce / (AllReduce + MP))), both as bytes that cross links: 2 (k - 1) times
    the size for a group of k, `pair_bytes` for MP. Where ports are not alike, as many of the
    fastest as have this part of the bandwidth. Rounded up to even on duplex, where a ring costs two
    ports (except for two servers). Without MP demand all ports.
    """
    if pair_bytes == 0:
        return cluster.degree
    traffic = sum(ring_traffic_bytes(group) for group in groups)
    degree = max(1, -(-cluster.degree * traffic // (traffic + pair_bytes)))
    if cluster.port_gbps is not None:
        degree = ports_for(cluster, Fraction(traffic, traffic + pair_bytes))
    cost = ports_per_ring(cluster, cluster.servers)
    return min(cluster.degree, -(-degree // cost) * cost)


def ring_counts(cluster: Cluster, groups: Sequence[GroupDemand], degree: int) -> dict[Servers, int]:
    """The number of strides of each group out of `degree` ports per server (lines 5-7).

    In order of traffic, group k gets ceil(degree * share) ports (where they are not alike, as many
    as carry that share of what these ports do), rounded down to whole rings but
    not to none, where share is its part of the ring traffic at its most contended member; never
    more than its members have left, nor more than it has distinct strides. What rounding leaves
    over goes to further strides in the same order. If the groups with links do not connect the
    cluster, the first ring goes to the whole cluster ("to ensure the network remains connected",
    section 4.2 step 1) and the rest is shared again.
    """
    counts = _share_degree(cluster, groups, degree, connect=False)
    linked = [servers for servers, count in counts.items() if count]
    if not _connected(cluster.servers, linked):
        counts = _share_degree(cluster, groups, degree, connect=True)
    return counts


def _share_degree(
    cluster: Cluster, groups: Sequence[GroupDemand], degree: int, *, connect: bool
) -> dict[Servers, int]:
    left = [degree] * cluster.servers
    counts = dict.fromkeys((group.servers for group in groups), 0)
    whole = tuple(range(cluster.servers))
    asking = [g.servers for g in groups if ring_traffic_bytes(g)] or [whole]
    shares = _contended_shares(cluster, groups)

    def grant(servers: Servers, rings: int) -> int:
        """Gives up to `rings` more strides to a group; returns how many."""
        cost = ports_per_ring(cluster, len(servers))
        strides = len(totient_perms(len(servers), duplex=cluster.ports == "duplex"))
        room = min(min(left[s] for s in servers) // cost, strides - counts[servers])
        granted = max(0, min(rings, room))
        counts[servers] += granted
        for server in servers:
            left[server] -= granted * cost
        return granted

    if connect:
        grant(whole, 1)
    for servers in asking:
        cost = ports_per_ring(cluster, len(servers))
        share = shares.get(servers, Fraction(1))
        ports = -(-degree * share // 1)
        if cluster.port_gbps is not None:
            ports = ring_ports_for(cluster, servers, left, degree, share)
        grant(servers, max(1, ports // cost) - counts[servers])
    granted = 1
    while granted:
        granted = sum(grant(servers, 1) for servers in asking)
    return counts


def _contended_shares(cluster: Cluster, groups: Sequence[GroupDemand]) -> dict[Servers, Fraction]:
    """Each group's part of the ring traffic that passes its busiest member; none without demand."""
    each = {g.servers: Fraction(ring_traffic_bytes(g), len(g.servers)) for g in groups}
    busy = [Fraction(0)] * cluster.servers
    for servers, traffic in each.items():
        for server in servers:
            busy[server] += traffic
    return {
        servers: traffic / max(busy[s] for s in servers)
        for servers, traffic in each.items()
        if traffic
    }


def _connected(count: int, sets: Sequence[Servers]) -> bool:
    """Whether sets of servers, each connected in itself, join all servers 0..count-1."""
    root = list(range(count))

    def find(server: int) -> int:
        while root[server] != server:
            root[server] = root[root[server]]
            server = root[server]
        return server

    for servers in sets:
        for server in servers:
            root[find(server)] = find(servers[0])
    return len({find(server) for server in range(count)}) == 1


def wire_rings(
    wiring: PortAllocator, counts: Mapping[Servers, int]
) -> dict[Servers, tuple[int, ...]]:
    """Wires the selected strides of every group (lines 8-9); returns them by group."""
    strides = {}
    for servers, count in counts.items():
        candidates = totient_perms(len(servers), duplex=wiring.duplex)
        strides[servers] = select_permutations(len(servers), count, candidates)
        for stride in strides[servers]:
            wiring.add_stride(servers, stride)
    return strides


def wire_further_rings(wiring: PortAllocator, strides: dict[Servers, tuple[int, ...]]) -> None:
    """Gives ports that neither step 2 nor step 3 used to further strides, added to `strides`.

    Groups take turns in their order, one stride each, while all members of some group have ports
    left and a distinct stride exists.
    """
    progress = True
    while progress:
        progress = False
        for servers, chosen in strides.items():
            if wiring.free_ports(servers) < ports_per_ring(wiring.cluster, len(servers)):
                continue
            candidates = totient_perms(len(servers), duplex=wiring.duplex)
            further = select_permutations(len(servers), 1, candidates, chosen)
            for stride in further:
                wiring.add_stride(servers, stride)
                strides[servers] = (*chosen, stride)
                progress = True


def wire_partial_strides(wiring: PortAllocator, chosen: Sequence[int]) -> None:
    """Wires the other strides where all servers have ports left but no coprime stride is.

    A stride that shares a factor g with n forms g rings of n / g servers: of no use to AllReduce
    over all servers, but it shortens routes, keeps the network the same from every server, and
    leaves no port dark (n = 6, d = 4: the hexagon and two triangles). Our addition: the paper says
    nothing about small coprime sets. Strides are picked like the others, near a geometric sequence.
    """
    count = wiring.cluster.servers
    servers = range(count)
    # stride n / 2 pairs servers up; it is left to the matching, for it costs one port, not two
    largest = (count - 1) // 2 if wiring.duplex else count - 1
    chosen = tuple(chosen)
    while wiring.free_ports(servers) >= ports_per_ring(wiring.cluster, count):
        left = [stride for stride in range(1, largest + 1) if stride not in chosen]
        if wiring.duplex and wiring.free_ports(servers) % 2:
            # The odd port gets a matching of what is left, which should not be rings of odd length
            # that no stride joins (n = 21, d = 15: strides 3 and 7 are used, and 6 and 9 are left).
            joined = [s for s in left if math.gcd(count, *(x for x in left if x != s)) == 1]
            left = joined or left
        further = select_permutations(count, 1, left, chosen)
        if not further:
            return
        wiring.add_stride(servers, further[0])
        chosen = (*chosen, *further)


def wire_crossing(wiring: PortAllocator, strides: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """A matching that crosses the last ring over all servers, where every server has one port left.

    `strides` are those of these rings. Returns the pairs that were joined: () on simplex, without a
    ring, with another number of ports, or where no such matching is left (`crossing_matching`).
    """
    servers = range(wiring.cluster.servers)
    if not wiring.duplex or not strides or {wiring.free_transmitters(s) for s in servers} != {1}:
        return ()
    joined = {(link.source, link.target) for link in wiring.links if link.source < link.target}
    matching = crossing_matching(ring_order(servers, strides[-1]), joined)
    for source, target in matching:
        wiring.connect(source, target)
    return matching


def wire_repeated_strides(wiring: PortAllocator, strides: dict[Servers, tuple[int, ...]]) -> None:
    """Ports that are left repeat the coprime strides, where parallel links are asked for.

    Those over all servers, in their order, each as often as there are ports; added to `strides`.
    """
    whole = tuple(range(wiring.cluster.servers))
    again = strides[whole] or totient_perms(len(whole), duplex=wiring.duplex)[:1]
    cost = ports_per_ring(wiring.cluster, len(whole))
    for stride in itertools.cycle(again):
        if wiring.free_ports(whole) < cost:
            return
        wiring.add_stride(whole, stride)
        strides[whole] = (*strides[whole], stride)
