"""Reference networks: one file, one `build(cluster, demand, seed=...)` -> Topology.

`ARCHITECTURES` names them. A Cluster says how many servers there are, with how many ports of which
rate; a network of switches gives each server one link of degree x rate unless told otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch_topoopt.architectures import (
    dragonfly,
    fat_tree,
    hyperx,
    ideal_switch,
    jellyfish,
    kautz,
    leaf_spine,
    ocs_reconfig,
    oversubscribed_fat_tree,
    rail_only,
    sip_ml,
    topoopt,
    topoopt_tors,
    torus,
    xpander,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.plan import Cluster, Demand


class Build(Protocol):
    """What every architecture offers; `demand` matters to those that are wired for a job."""

    def __call__(
        self, cluster: Cluster, demand: Demand | None = None, *, seed: int = 0
    ) -> Topology: ...


ARCHITECTURES: Mapping[str, Build] = {
    "ideal-switch": ideal_switch.build,
    "topoopt": topoopt.build,
    "fat-tree": fat_tree.build,
    "oversubscribed-fat-tree": oversubscribed_fat_tree.build,
    "leaf-spine": leaf_spine.build,
    "rail-only": rail_only.build,
    "jellyfish": jellyfish.build,
    "xpander": xpander.build,
    "torus": torus.build,
    "kautz": kautz.build,
    "de-bruijn": kautz.build_de_bruijn,
    "hyperx": hyperx.build,
    "dragonfly": dragonfly.build,
    "topoopt-tors": topoopt_tors.build,
    "ocs-reconfig": ocs_reconfig.build,
    "ocs-reconfig-no-forwarding": ocs_reconfig.build_no_forwarding,
    "sip-ml": sip_ml.build,
}


def architecture(name: str) -> Build:
    """The entry of ARCHITECTURES; raises ValueError listing the names."""
    try:
        return ARCHITECTURES[name]
    except KeyError:
        raise ValueError(
            f"architecture: {name!r} is not known; use one of {', '.join(ARCHITECTURES)}"
        ) from None
