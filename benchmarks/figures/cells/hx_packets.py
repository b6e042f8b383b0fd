"""Traffic of the HammingMesh paper packet by packet, on the small networks of its Table II."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt.comparison import packet_bandwidth
from torch_topoopt.comparison.cable_cost import COLFAX_2022, cable_parts
from torch_topoopt.comparison.hammingmesh import LINK_GBPS, networks

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.comparison.hammingmesh import TableNetwork

DEPENDS_ON = ("csrc/sim", "torch_topoopt/sim", "torch_topoopt/comparison")


def _network(name: str, size: str) -> TableNetwork:
    return next(network for network in networks(size) if network.name == name)  # type: ignore[arg-type]


def _plane(name: str) -> Topology:
    return packet_bandwidth.one_plane(_network(name, "small").topology)


def all_to_all(*, network: str, message_bytes: int, seed: int) -> Any:
    """A sample of the shifts (`packet_bandwidth.sampled_shifts`)."""
    plane = _plane(network)
    shifts = packet_bandwidth.sampled_shifts(plane.servers)
    share = packet_bandwidth.all_to_all_share(plane, message_bytes, shifts=shifts, seed=seed)
    return {"share": share, "shifts": len(shifts)}


def permutation(*, network: str, message_bytes: int, permutations: int, seed: int) -> Any:
    """Receive bandwidths of all accelerators in several random permutations, and the cost."""
    found = _network(network, "small")
    plane = packet_bandwidth.one_plane(found.topology)
    shares = np.concatenate(
        [
            packet_bandwidth.permutation_shares(plane, message_bytes, seed=seed + i)
            for i in range(permutations)
        ]
    )
    parts = [0, 5, 25, 50, 75, 95, 100]
    return {
        "mean": float(shares.mean()),
        "percentiles": dict(
            zip(map(str, parts), np.percentile(shares, parts).tolist(), strict=True)
        ),
        "cost_dollars": cable_parts(found.topology, LINK_GBPS).cost(COLFAX_2022),
    }
