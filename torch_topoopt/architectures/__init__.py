"""Reference networks: one file, one `build(cluster, demand, seed=...)` -> Topology, and one line
of `ARCHITECTURES` that names it.

A Cluster has a number of servers, and the number and rate of their ports. A network of switches
gives each server one link of degree x rate by default.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.architectures.topology import Topology
from torch_topoopt.plan.codec import as_read
from torch_topoopt.user_functions import UserFunction, is_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.plan import Cluster, Demand


class Build(Protocol):
    """The signature of every architecture; `demand` matters to networks wired for a job."""

    def __call__(
        self, cluster: Cluster, demand: Demand | None = None, *, seed: int = 0
    ) -> Topology: ...


ARCHITECTURES: Mapping[str, Build] = {
    name: pkgutil.resolve_name(f"{__name__}.{where}")
    for name, where in {
        "ideal-switch": "ideal_switch:build",
        "topoopt": "topoopt:build",
        "fat-tree": "fat_tree:build",
        "oversubscribed-fat-tree": "fat_tree:build_oversubscribed",
        "tapered-fat-tree": "tapered_fat_tree:build",
        "leaf-spine": "leaf_spine:build",
        "rail-only": "rail_only:build",
        "jellyfish": "jellyfish:build",
        "xpander": "xpander:build",
        "torus": "torus:build",
        "kautz": "kautz:build",
        "de-bruijn": "kautz:build_de_bruijn",
        "hyperx": "hyperx:build",
        "dragonfly": "dragonfly:build",
        "hx1mesh": "hammingmesh:build_hx1",
        "hx2mesh": "hammingmesh:build_hx2",
        "hx4mesh": "hammingmesh:build_hx4",
        "hammingmesh": "hammingmesh:build",
        "topoopt-tors": "topoopt_tors:build",
        "ocs-reconfig": "ocs_reconfig:build",
        "ocs-reconfig-no-forwarding": "ocs_reconfig:build_no_forwarding",
        "sip-ml": "sip_ml:build",
    }.items()
}


def architecture(name: str) -> Build:
    """The entry of ARCHITECTURES, or FILE.py:NAME, a `build` of the user's whose networks are
    validated; raises ValueError listing the names, and UserFunctionError as `UserFunction.load`."""
    if is_file(name):
        return _of_user(UserFunction.load("architecture", name))
    try:
        return ARCHITECTURES[name]
    except KeyError:
        raise ValueError(
            f"architecture: {name!r} is not known; use one of {', '.join(ARCHITECTURES)}, or "
            "FILE.py:NAME"
        ) from None


def _of_user(function: UserFunction) -> Build:
    def build(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
        topology = function(cluster, demand, seed=seed)
        if not isinstance(topology, Topology):
            raise function.returned(topology, "a torch_topoopt.architectures.topology.Topology")
        with function.checking_result():
            topology = as_read(Topology, topology, "topology").validate()
            if topology.servers != cluster.servers:
                raise ValueError(f"servers: {topology.servers} is not {cluster.servers}")
        return topology

    return build
