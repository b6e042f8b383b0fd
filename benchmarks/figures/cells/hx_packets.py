"""Traffic of the HammingMesh paper packet by packet, on the small networks of its Table II."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from figures.papers import packet_bandwidth
from figures.papers.hammingmesh import (
    LINK_GBPS,
    PLANES,
    all_reduce_seconds,
    networks,
    torus_all_reduce_seconds,
)
from torch_topoopt.comparison.cable_cost import COLFAX_2022, cable_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from figures.papers.hammingmesh import TableNetwork
    from torch_topoopt.architectures.topology import Topology

DEPENDS_ON = ("csrc/sim", "torch_topoopt/sim", "torch_topoopt/comparison")

SAMPLES = 4  # of the shifts of an all-to-all, without one in common


def _network(name: str, size: str) -> TableNetwork:
    return next(network for network in networks(size) if network.name == name)  # type: ignore[arg-type]


def _plane(name: str) -> Topology:
    return packet_bandwidth.one_plane(_network(name, "small").topology)


def all_to_all(*, network: str, message_bytes: int, sample: int, seed: int) -> Any:
    """One of `SAMPLES` samples of the shifts (`packet_bandwidth.sampled_shifts`)."""
    plane = _plane(network)
    shifts = packet_bandwidth.sampled_shifts(plane.servers, sample, SAMPLES)
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


def all_reduce(
    *, network: str, size: str, algorithm: str, level: str, message_bytes: Sequence[int], seed: int
) -> Any:
    """Seconds and share of half of the injection bandwidth, of each message. At flow level those of
    all planes together, at packet level of one plane with a quarter of the message."""
    found = _network(network, size)
    rows = columns = round(found.topology.servers**0.5)
    plane = packet_bandwidth.one_plane(found.topology) if level == "packet" else found.topology
    shares = []
    for each in message_bytes:
        if level == "packet" and algorithm == "rings":
            seconds = packet_bandwidth.ring_seconds(plane, each / PLANES, seed=seed).seconds
        elif level == "packet":
            seconds = packet_bandwidth.torus_seconds(plane, rows, columns, each / PLANES, seed=seed)
        elif algorithm == "rings":
            seconds = all_reduce_seconds(plane, found.traffic, each)
        else:
            seconds = torus_all_reduce_seconds(plane, found.traffic, rows, columns, each)
        part = each / PLANES if level == "packet" else each
        shares.append(packet_bandwidth.all_reduce_share(plane, part, seconds))
    return {"shares": shares}
