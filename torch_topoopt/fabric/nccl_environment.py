"""The environment by which ranks that use stock NCCL find the plugin and the plan's network.

NCCL_TOPO_FILE and NCCL_GRAPH_FILE are not part of it: both describe the inside of a server, and
NCCL joins servers in the order of their ranks, whatever these files say. That order is
`nccl_wiring.ring_order`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch_topoopt.fabric.nccl_wiring import LIBRARY

WIRING_VARIABLE = "TOPOOPT_NCCL_WIRING"
RANK_VARIABLE = "TOPOOPT_NCCL_RANK"
INTERFACE_VARIABLE = "NCCL_SOCKET_IFNAME"


class Variable(NamedTuple):
    name: str
    value: str
    purpose: str


def nccl_environment(wiring: str, rank: int | None = None) -> tuple[Variable, ...]:
    """Of `rank`, or what all ranks have in common; `wiring` is the path of the text for the plugin
    (nccl_wiring.write_nccl_wiring), on the host of the rank."""
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
