"""TopologyFinder as the paper's public artifact does it: mode `released`.

The artifact's code differs from the paper's text, and the paper's published path lengths and
bandwidth taxes come from such code. Its algorithm, as read in its sources:

- The whole degree serves AllReduce; no port is left for matchings (Algorithm 1, step 3 never runs).
- AllReduce bytes are counted by group size. The size with the most gets all ports; if that is not
  the whole cluster, one stride of them goes to the ring +1 over all servers.
- A group of g servers is taken to be {s, s + n/g, s + 2n/g, ...}, and its strides are laid for all
  n/g such groups. Sizes that do not divide n stop the program; here they are a ValueError.
- Strides are a geometric sequence whose last possible member is the largest candidate, each rounded
  up to the next candidate (`released_strides`).
- Groups without links of their own get one ring and its reverse, of the stride that needs the
  fewest hops by coin change.
- One shortest path per pair. The artifact draws it at random; here it is the balanced choice of
  `coin_change`, so that the result is a function of the arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.topology.finder.multi_hop_rings import ring_hops, short_ring
from torch_topoopt.topology.finder.port_allocator import ports_per_ring
from torch_topoopt.topology.finder.totient_perms import ring_order, totient_perms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import GroupDemand
    from torch_topoopt.topology.finder.group_rings import Servers
    from torch_topoopt.topology.finder.port_allocator import PortAllocator


def released_strides(size: int, count: int, *, duplex: bool) -> tuple[int, ...]:
    """The artifact's `count` strides for a group of `size` servers.

    The candidates are all p < size that are coprime with size, on duplex too, where p and size - p
    are the same cables: with few candidates a cable is laid twice. With the smallest a, the largest
    b and x = (b / a)^(1 / count) (simplex: 1 / (count - 1)), the i-th stride is the least
    candidate not below a x^i, or the next larger one that is not taken. Compared in integers, so
    that no rounding decides.

    Raises ValueError if the candidates end before the strides do (the artifact reads beyond them).
    """
    candidates = totient_perms(size, duplex=False)
    least, largest = candidates[:1], candidates[-1:]
    chosen: list[int] = []
    steps = max(1, count if duplex else count - 1)
    for i in range(count):
        left = [
            p
            for p in candidates
            if p not in chosen and p**steps >= least[0] ** (steps - i) * largest[0] ** i
        ]
        if not left:
            raise ValueError(
                f"degree: mode 'released' has no stride number {i + 1} for a group of {size} "
                f"servers after {', '.join(map(str, chosen)) or 'none'}; use fewer ports or "
                "another mode"
            )
        chosen.append(left[0])
    return tuple(chosen)


def wire_released(wiring: PortAllocator, groups: Sequence[GroupDemand]) -> dict[Servers, Servers]:
    """Wires all ports by the artifact's rule; returns the strides of every group of `groups`.

    `groups` comes from `merge_groups`. Raises ValueError for what the artifact cannot wire.
    """
    count = wiring.cluster.servers
    whole = tuple(range(count))
    strides: dict[Servers, Servers] = {group.servers: () for group in groups}
    if count == 1:
        return strides
    traffic: dict[int, int] = {}
    for group in groups:
        size = len(group.servers)
        if size == 1:
            continue
        if count % size:
            raise ValueError(
                f"demand: a group of {size} servers in mode 'released', which knows only sizes "
                f"that divide {count}"
            )
        traffic[size] = traffic.get(size, 0) + 2 * (size - 1) * group.size_bytes
    heaviest = max(traffic, key=lambda size: (traffic[size], size))
    cost = ports_per_ring(wiring.cluster, count)
    rings, odd = divmod(wiring.cluster.degree, cost)
    if odd:
        raise ValueError(
            f"degree: {wiring.cluster.degree} is odd; mode 'released' lays strides of two ports "
            "each, as the artifact does; use an even degree, or mode paper or best"
        )
    if heaviest < count:
        wiring.add_stride(whole, 1)
        strides[whole] = (1,)
        rings -= 1
    chosen = released_strides(heaviest, rings, duplex=wiring.duplex)
    cables = 2 if wiring.duplex and heaviest == 2 < count else 1  # both directions of a pair
    for first in range(count // heaviest):
        members = tuple(range(first, count, count // heaviest))
        for stride in chosen:
            for _ in range(cables):
                wiring.add_stride(members, stride)
        if members in strides:
            strides[members] = chosen
    return strides


def released_order(servers: Servers, distances: Sequence[Sequence[int]]) -> Servers:
    """The ring of a group without links of its own.

    Of the regular orders of a group {s, s + n/g, ...} the one with the fewest hops; of any other
    group, which the artifact does not know, `short_ring`.
    """
    count = len(distances)
    step = count // len(servers)
    if servers != tuple(range(servers[0], count, step))[: len(servers)]:
        return short_ring(servers, distances)
    orders = [ring_order(servers, p) for p in totient_perms(len(servers), duplex=False)]
    return min(orders, key=lambda order: ring_hops(order, distances))
