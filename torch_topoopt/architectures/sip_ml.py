"""SiP-ML (Khani et al., SIGCOMM 2021) as the TopoOpt paper compares it (section 5.1, Appendix F).

SiP-Ring with `degree` wavelengths of the link rate per server, reconfigured in 25 us. The paper
replaces SiP-Ring's integer program by Algorithm 5 with Discount = 1, on a flat layer of circuits
instead of a physical ring; bytes wait for a circuit of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.architectures import ocs_reconfig
from torch_topoopt.architectures.topology import Reconfiguration

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.plan import Cluster, Demand

DELAY_S = 25e-6
WINDOW_S = 1e-3  # the paper names none


def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    window_s: float = WINDOW_S,
    delay_s: float = DELAY_S,
) -> Topology:
    """As `ocs_reconfig.build` without forwarding, and with no discount for parallel circuits."""
    topology = ocs_reconfig.build(cluster, demand, seed=seed, forwarding=False)
    policy = Reconfiguration(window_s, delay_s, halve=False, forwarding=False).validate()
    return replace(topology, architecture="sip-ml", reconfiguration=policy)
