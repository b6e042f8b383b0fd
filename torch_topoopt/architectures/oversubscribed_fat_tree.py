"""Oversubscribed fat-tree (TopoOpt paper, section 5.1): half of the ToR uplinks are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.architectures import fat_tree

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.plan import Cluster, Demand


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    server_gbps: float | None = None,
    radix: int | None = None,
    oversubscription: float = 2.0,
) -> Topology:
    """A fat-tree whose edge switches have 1/`oversubscription` of their uplinks.

    The rest is as in `fat_tree.build`. Raises also ValueError for an oversubscription below 1.
    """
    if not oversubscription >= 1:
        raise ValueError(f"oversubscription: {oversubscription} is not at least 1")
    tree = fat_tree.build(
        cluster,
        demand,
        seed=seed,
        server_gbps=server_gbps,
        radix=radix,
        edge_taper=1 / oversubscription,
    )
    return replace(tree, architecture="oversubscribed-fat-tree")
