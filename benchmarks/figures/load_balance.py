"""The balance of a demand's load on the links of a network (paper Figure 15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

if TYPE_CHECKING:
    from torch_topoopt.plan import Demand, Network


@dataclass(frozen=True)
class LoadBalance:
    """Bytes per iteration over all links: the least, the mean and the most of a link.

    `cdf` are points (bytes, fraction of links that carry at most that), ascending, one for each
    amount that some link carries: the curve of the paper's Figure 15.
    """

    min_bytes: float
    mean_bytes: float
    max_bytes: float
    cdf: tuple[tuple[float, float], ...]

    @property
    def max_over_mean(self) -> float:
        """1 for perfect balance; also for links without any bytes."""
        return self.max_bytes / self.mean_bytes if self.mean_bytes else 1.0

    @property
    def least_below_most(self) -> float:
        """By which fraction the least loaded link carries less than the most loaded one, which is
        what the paper states of Figure 15; 0 for perfect balance."""
        return 1 - self.min_bytes / self.max_bytes if self.max_bytes else 0.0


def load_balance(network: Network, demand: Demand, servers: int) -> LoadBalance:
    """The balance of `demand` (AllReduce on the network's rings, and MP) on its links and routes.

    Raises ValueError if a group has no rings in `network`, a pair neither link nor route, or the
    network has no links.
    """
    if not network.links:
        raise ValueError("network: has no links")
    loads = np.sort(link_bytes(network, traffic_matrix(network, demand, servers)))
    # equal up to rounding is equal: the point keeps the largest of them
    last = np.append(np.diff(loads) > 1e-9 * loads[-1], True)
    at_most = np.flatnonzero(last) + 1
    cdf = tuple(zip(loads[last].tolist(), (at_most / len(loads)).tolist(), strict=True))
    return LoadBalance(float(loads[0]), float(loads.mean()), float(loads[-1]), cdf)
