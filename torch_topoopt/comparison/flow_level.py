"""One training iteration on any architecture: the front of the flow level for a Topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.architectures.routing import Routes, lower_topology, ring_hops
from torch_topoopt.reconfiguration.simulation import simulate_reconfiguring
from torch_topoopt.search.lowering import degrees_of, lower_job, lower_placement
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.search.traffic import demand

if TYPE_CHECKING:
    from torch_topoopt.architectures.routing import Pair
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Demand
    from torch_topoopt.search.strategies import Strategy


@dataclass(frozen=True)
class ArchitectureEstimate:
    """One simulated iteration; `link_bytes[i]` belongs to `topology.links[i]`.

    `bandwidth_tax` is the bytes that servers send, forwarded ones included, over the bytes that
    they have to send (TopoOpt paper, section 5.4); 1 if nothing is sent.
    """

    iteration_s: float
    compute_s: float
    link_bytes: tuple[int, ...]
    bandwidth_tax: float


def predict_on(
    topology: Topology,
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
) -> ArchitectureEstimate:
    """Simulates one iteration of `op_graph` split by `strategy` on `topology`.

    As `sim.predict`, with the topology's links, routes and rings; of `cluster` only the servers and
    their accelerators matter. Raises ValueError for an unknown accelerator, a strategy that does
    not fit `op_graph` or the cluster, another number of servers, or servers without a path.
    """
    check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)
    if topology.servers != cluster.servers:
        raise ValueError(
            f"topology: has {topology.servers} servers, and the cluster {cluster.servers}"
        )
    routes = Routes(topology)
    asked = demand(op_graph, strategy, cluster.servers)
    folded = lower_topology(routes, pairs_of(routes, asked))
    job = lower_job(op_graph, cluster, degrees_of([strategy]), micro_batches=micro_batches)
    iteration_s, compute_s, simulated, _ = _core.simulate_iteration(
        job, folded.network, [lower_placement(placement) for placement in strategy]
    )
    link_bytes = routes.link_bytes(folded.edge_bytes(simulated))
    sent = sum(
        size
        for size, link in zip(link_bytes, topology.links, strict=True)
        if link.source < topology.servers
    )
    needed = demand_bytes(asked)
    return ArchitectureEstimate(
        iteration_s, compute_s, link_bytes, sent / needed if needed else 1.0
    )


def pairs_of(routes: Routes, asked: Demand) -> set[Pair]:
    """The pairs of servers between which `asked` moves bytes: MP pairs and neighbours on rings."""
    pairs = {(pair.source, pair.target) for pair in asked.pairs if pair.size_bytes}
    rings = lower_topology(routes, ()).network
    for group in asked.groups:
        if group.size_bytes and len(group.servers) > 1:
            pairs |= ring_hops(rings, group.servers)
    return pairs


def demand_bytes(asked: Demand) -> float:
    """Bytes that the servers have to send: a ring AllReduce of S bytes among k sends 2 (k-1) S."""
    reduced = sum(2 * (len(group.servers) - 1) * group.size_bytes for group in asked.groups)
    return float(reduced + sum(pair.size_bytes for pair in asked.pairs))


def predict_architecture(
    topology: Topology,
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
    seed: int = 0,
) -> ArchitectureEstimate:
    """One iteration on what an entry of ARCHITECTURES built, also where circuits move during it.

    As `predict_on`, and then with `link_bytes` empty: the links are not the same throughout. `seed`
    is for circuits that no demand asks for.
    """
    if topology.reconfiguration is None:
        return predict_on(topology, op_graph, cluster, strategy, micro_batches=micro_batches)
    check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)
    changing = simulate_reconfiguring(
        topology, op_graph, cluster, strategy, micro_batches=micro_batches, seed=seed
    )
    needed = demand_bytes(demand(op_graph, strategy, cluster.servers))
    return ArchitectureEstimate(
        changing.iteration_s,
        changing.compute_s,
        (),
        changing.sent_bytes / needed if needed else 1.0,
    )
