"""Layouts on architectures: on each, the fastest of all, priced in closed form on its links."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.architectures.routing import Routes
from torch_topoopt.comparison.estimate import ArchitectureEstimate, demand_bytes
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.search.layouts.traffic import layout_demand
from torch_topoopt.search.layouts.wired_boxes import GroupRates, around_rings, boxes_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Demand, Pair, Plan, Ring
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.planner.options import PlanningOptions


class TopologyRates(GroupRates):
    """Rates on an architecture: all shortest paths share the bytes of a pair."""

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        gbps: dict[Pair, float] = defaultdict(float)
        for link in topology.links:
            gbps[link.source, link.target] += link.gbps
        super().__init__(cluster, gbps)
        self.routes = Routes(topology)

    def rings(self, servers: tuple[int, ...]) -> Sequence[Ring]:
        return self.routes.rings.rings(servers)

    def busiest_s(self, traffic: NDArray[np.float64]) -> float:
        return float((self.edge_bytes(traffic) / self.routes.bytes_per_s).max())

    def edge_bytes(self, traffic: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bytes of every edge of the routes."""
        loads = self.routes.loads(
            (source, target) for source, target in np.argwhere(traffic).tolist()
        )
        sent = np.repeat(traffic[loads.source, loads.target], np.diff(loads.begin))
        count = len(self.routes.bytes_per_s)
        return np.bincount(loads.edge, weights=loads.load * sent, minlength=count).astype(float)


class ComparedLayouts:
    """The fastest layout of a model on each architecture, trained as `plan` says."""

    def __init__(
        self, op_graph: OpGraph, cluster: Cluster, options: PlanningOptions, plan: Plan
    ) -> None:
        self._cluster, self._plan = cluster, plan
        self._planning = LayoutPlanning(op_graph, cluster, options)

    def on(self, topology: Topology) -> tuple[Layout, ArchitectureEstimate]:
        """The fastest layout that fits, and its iteration.

        Raises ValueError for circuits that move, and where servers have no path.
        """
        if topology.reconfiguration is not None:
            raise ValueError(
                f"{topology.architecture}: circuits move, and layouts are priced on links that stay"
            )
        planning, plan = self._planning, self._plan
        rates = TopologyRates(self._cluster, topology)
        if topology.architecture == "topoopt":  # over the plan's routes and rings
            prices = planning.prices_on(plan.network)
        else:
            prices = planning.prices.on(boxes_with(self._cluster, planning.device, rates))
        assert plan.layout is not None
        planned = prices.price(plan.layout)
        assert planned is not None
        best = min((planned, *planning.fastest(prices)), key=lambda price: price.times.step_s)
        asked = layout_demand(best, self._cluster.accelerators_per_server, planning.state)
        link_bytes = rates.routes.link_bytes(rates.edge_bytes(_traffic(asked, rates)).tolist())
        sent = sum(
            size
            for size, link in zip(link_bytes, topology.links, strict=True)
            if link.source < topology.servers
        )
        needed = demand_bytes(asked)
        tax = sent / needed if needed else 1.0
        times = best.times
        return best.layout, ArchitectureEstimate(times.step_s, times.compute_s, link_bytes, tax)


def _traffic(asked: Demand, rates: TopologyRates) -> NDArray[np.float64]:
    """Bytes between servers: AllReduces over rings, and the pairs."""
    servers = rates.routes.topology.servers
    traffic = np.zeros((servers, servers))
    for group in asked.groups:
        around_rings(traffic, rates.rings(group.servers), 2 * group.size_bytes)
    for pair in asked.pairs:
        traffic[pair.source, pair.target] += pair.size_bytes
    return traffic
