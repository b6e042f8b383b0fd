"""The environment that makes stock NCCL use the plugin and the plan's network.

It has no NCCL_TOPO_FILE and no NCCL_GRAPH_FILE: both describe the inside of a server. NCCL always
connects servers in the order of their ranks, which is `nccl_wiring.ring_order`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch_topoopt.links.nccl_wiring import LIBRARY

WIRING_VARIABLE = "TOPOOPT_NCCL_WIRING"
RANK_VARIABLE = "TOPOOPT_NCCL_RANK"
INTERFACE_VARIABLE = "NCCL_SOCKET_IFNAME"


class Variable(NamedTuple):
    name: str
    value: str
    purpose: str


def nccl_environment(wiring: str, rank: int | None = None) -> tuple[Variable, ...]:
    """The environment of `rank`, or the part common to all ranks. `wiring` is the path of the
    plugin's text (nccl_wiring.write_nccl_wiring) on the rank's host."""
    variables = (
        Variable("NCCL_NET_PLUGIN", str(LIBRARY), "the network plugin"),
        Variable(
            "NCCL_NET", "topoopt", "no other network: NCCL ends where the plugin cannot begin"
        ),
        Variable(
            "NCCL_TUNER_PLUGIN",
            str(LIBRARY),
            "the same library: what rings and trees cost on these cables",
        ),
        Variable(
            WIRING_VARIABLE, wiring, "cables, routes and secrets of this job: one for each job"
        ),
    )
    if rank is None:
        return variables
    purpose = "for the plugin, where torchrun's RANK is not set or means something else"
    return (*variables, Variable(RANK_VARIABLE, str(rank), purpose))
