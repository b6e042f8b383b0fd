"""The plan's strategy on other kinds of network, and what each costs (TopoOpt paper, Figure 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.architectures import architecture, fat_tree, topoopt
from torch_topoopt.comparison.compare import equal_cost_tree_gbps
from torch_topoopt.comparison.cost import capital_cost
from torch_topoopt.comparison.estimate import predict_on

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan

NAMES = (
    "topoopt", "ideal-switch", "fat-tree", "oversubscribed-fat-tree", "leaf-spine", "jellyfish",
    "torus", "sip-ml",
)  # fmt: skip


@dataclass(frozen=True)
class ArchitectureCost:
    """`cost` in dollars; None: parts without a price. `server_gbps` is what a server can send."""

    name: str
    server_gbps: float
    iteration_s: float
    bandwidth_tax: float
    cost: float | None


def architecture_costs(op_graph: OpGraph, plan: Plan) -> tuple[ArchitectureCost, ...]:
    """The architectures that fit these servers and ports. The first row is the plan's own network,
    through patch panels; the fat-tree is sized to the same cost."""
    rows = []
    for name in NAMES:
        try:
            topology = _topology(name, plan)
            estimate = predict_on(
                topology, op_graph, plan.cluster, plan.strategy,
                micro_batches=plan.micro_batches, schedules=True,
            )  # fmt: skip
        except (ValueError, NotImplementedError):  # does not fit these servers and ports
            continue
        cost = capital_cost(topology, plan.cluster)
        sent = sum(link.gbps for link in topology.links if link.source == 0)
        rows.append(
            ArchitectureCost(
                name, sent, estimate.iteration_s, estimate.bandwidth_tax,
                None if cost is None else cost.total,
            )
        )  # fmt: skip
    return tuple(rows)


def _topology(name: str, plan: Plan) -> Topology:
    cluster = plan.cluster
    if name == "topoopt":
        return topoopt.build(cluster, network=plan.network)
    if name == "fat-tree":
        gbps = equal_cost_tree_gbps(cluster, plan.network)
        return fat_tree.build(cluster, server_gbps=gbps)
    return architecture(name)(cluster, plan.demand, seed=plan.seed)
