"""The cost of every architecture by the prices of the HammingMesh paper (III-C), in addition to
those of the TopoOpt paper (Table 2, `cost`).

TopoOpt's list counts NICs, transceivers, ports and fibre by their rate. HammingMesh's has one price
for a port's cable and one for a switch of 64 ports, at any rate; NICs belong to the accelerator.
Each list prices a whole network, with one exception: HammingMesh's has no patch panels and optical
switches. There a circuit is an optical cable, whose ends hold the transceivers, and its ports on a
panel or switch have TopoOpt's prices. Since compared networks may be small, a switch costs 1/64 for
each port in use; Table II of the HammingMesh paper has full switches only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.architectures.clos import RADIX
from torch_topoopt.comparison.cable_cost import COLFAX_2022, cable_parts
from torch_topoopt.comparison.cost import TABLE_2, UNPRICED, as_priced, through_optics

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.plan import Cluster


def cable_cost(topology: Topology, cluster: Cluster) -> float | None:
    """Dollars of `topology` where a cable has the rate of a port of `cluster`; a faster link is
    several cables, in planes of their own.

    None for a kind whose parts have no price: simplex ports, and SiP-ML. The ideal switch is
    estimated by a full-bisection fat-tree of the same rate, as in `capital_cost`.
    """
    if topology.architecture in UNPRICED or not topology.duplex:
        return None
    topology = as_priced(topology, cluster)
    lit = [through_optics(topology, link) for link in topology.links]
    links = tuple(
        replace(link, medium="aoc") if through else link
        for link, through in zip(topology.links, lit, strict=True)
    )
    cables = cable_parts(replace(topology, links=links, optics="none"), cluster.link_gbps)
    prices = COLFAX_2022
    optics = {"none": 0.0, "ocs": TABLE_2.ocs_port}
    optics["patch-panel"] = 2 * TABLE_2.panel_port + TABLE_2.selector  # of each end, as in `cost`
    ends, ports = 0, 0
    for link, through in zip(links, lit, strict=True):
        copies = math.ceil(link.gbps / cluster.link_gbps - 1e-9)
        ends += copies * through
        ports += copies * (link.source >= topology.servers and link.medium != "inside")
    return (
        cables.dacs * prices.dac
        + cables.aocs * prices.aoc
        + ports * prices.switch / RADIX
        + ends * optics[topology.optics]
    )
