"""Fat trees tapered at the leaves (HammingMesh paper, Appendix C): two levels, or three with pods.

A leaf divides its ports between servers and uplinks (`fat_tree` omits uplinks instead): 42 servers
and 22 uplinks of 64 ports at 50 %. Levels above are not tapered. A pod of radix / 2 leaves has as
many switches as a leaf has uplinks, each with as many cables up as down; the last pod only has
those it needs. The fewest core switches take all uplinks, one from each switch of a pod in turn, so
that each switch has about equally many cables to another pod.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch_topoopt.architectures.clos import RADIX, TwoLevels, check_switches, uplinks_of
from torch_topoopt.architectures.topology import Topology, Wires, link_gbps_of, switched

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Demand


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    server_gbps: float | None = None,
    radix: int | None = None,
    taper: float = 0.5,
) -> Topology:
    """A fat tree whose leaves have uplinks for at least `taper` of their servers.

    `radix` defaults to the smallest even one for two levels, or to 64 and three levels if none up
    to 64 suffices. One switch is enough for up to its number of ports. Every link has `server_gbps`
    (default: degree x link rate). `demand` and `seed` change nothing. Raises DocumentError for an
    invalid cluster and ValueError for a radix that is odd or too small, or a taper outside (0, 1].
    """
    wires = Wires.of(cluster, pair_tables=False)
    check_switches(2 if radix is None else radix, taper)
    servers = cluster.servers
    if radix is None:
        radix = smallest_radix(servers, taper)
    down = radix - uplinks_of(radix, taper)
    most = down * (radix // 2) * radix
    if radix % 2 or (servers > radix and servers > most):
        raise ValueError(
            f"radix: {radix} is not even and enough for three levels over {servers} servers; "
            f"it takes {most}"
        )
    gbps = link_gbps_of(cluster, server_gbps)
    two = TwoLevels(servers, radix, taper)
    if two.leaves <= radix:
        two.wire(wires, range(servers), servers, gbps, "dac")
        nodes = servers + two.switches
    else:
        wires.to_leaves(range(servers), servers, down, gbps, "dac")
        nodes = _wire_pods(wires, two, servers, gbps)
    return switched("tapered-fat-tree", cluster, wires, nodes=nodes, switch_ports=radix)


def smallest_radix(servers: int, taper: float) -> int:
    """The smallest even radix up to 64 for two levels of `servers`; else 64."""
    for radix in range(4, RADIX, 2):
        if TwoLevels(servers, radix, taper).leaves <= radix:
            return radix
    return RADIX


def _wire_pods(wires: Wires, leaf: TwoLevels, first_leaf: int, gbps: float) -> int:
    """Wires the levels above the leaves, of three; returns the number of nodes."""
    half, up = leaf.radix // 2, leaf.up
    node = first_leaf + leaf.leaves
    uplinks: list[int] = []  # the switch of the second level at the lower end of each
    for pod in range(0, leaf.leaves, half):
        leaves = range(pod, min(pod + half, leaf.leaves))
        switches = math.ceil(len(leaves) * up / half)
        for i in range(len(leaves) * up):
            wires.cable(first_leaf + leaves[i // up], node + i % switches, gbps)
        uplinks += [node + i % switches for i in range(len(leaves) * up)]
        node += switches
    cores = math.ceil(len(uplinks) / leaf.radix)
    for i, switch in enumerate(uplinks):
        wires.cable(switch, node + i % cores, gbps)
    return node + cores
