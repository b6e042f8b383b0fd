"""A full-bisection fat-tree with a link of B to a server: "d B' = B" (paper, section 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.architectures import fat_tree

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.plan import Cluster, Demand


def build(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """As every architecture is built (`torch_topoopt.architectures.Build`)."""
    return fat_tree.build(cluster, server_gbps=cluster.link_gbps)
