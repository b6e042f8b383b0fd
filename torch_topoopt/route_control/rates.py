"""Max-min fair rates of flows under a path assignment (sections 3.3 and 8 of the paper)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.route_control.clos_network import Link
    from torch_topoopt.route_control.flows import RoutingProblem


@dataclass(frozen=True)
class FairShares:
    """Per flow of a problem: the rate, in the unit of capacities, and its bottleneck link, which is
    full and has no faster flow."""

    rates: tuple[float, ...]
    bottlenecks: tuple[Link, ...]


def fair_shares(problem: RoutingProblem, choice: Sequence[int]) -> FairShares:
    """Rates by congestion control with path `choice[i]` for flow i, regardless of demands: links
    are shared max-min fairly.

    Raises ValueError for a choice that is not one path of each flow.
    """
    if len(choice) != len(problem.flows):
        raise ValueError(f"choice: {len(choice)} paths are not one for each flow")
    network = problem.network
    numbers = network.link_numbers
    paths = []
    for i, (flow, chosen) in enumerate(zip(problem.flows, choice, strict=True)):
        among = network.paths(flow.source, flow.target)
        if not 0 <= chosen < len(among):
            raise ValueError(f"choice[{i}]: {chosen} is not one of {len(among)} paths")
        paths.append([numbers[hop] for hop in itertools.pairwise(among[chosen])])
    capacity = [network.capacity[link] for link in network.links]
    rates, bottlenecks = _core.max_min_rates(capacity, paths)
    return FairShares(tuple(rates), tuple(network.links[link] for link in bottlenecks))
