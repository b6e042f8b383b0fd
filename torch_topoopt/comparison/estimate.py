"""One training iteration on any architecture, at flow level or packet by packet.

At flow level a transfer is spread over all shortest paths; at packet level every flow has one
(`sim.architecture_program`). Where circuits move during an iteration, both levels run the same
program (`reconfiguration.moving_circuits`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt import _core
from torch_topoopt.architectures.routing import Routes, lower_topology, ring_hops
from torch_topoopt.reconfiguration.moving_circuits import MovingCircuits
from torch_topoopt.search.lowering import degrees_of, lower_job
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import run_program
from torch_topoopt.sim.architecture_program import architecture_program, routed

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Demand, Pair
    from torch_topoopt.search.strategies import Strategy
    from torch_topoopt.sim.iteration_program import RingSteps


@dataclass(frozen=True)
class ArchitectureEstimate:
    """One simulated iteration; `link_bytes[i]` belongs to `topology.links[i]`.

    `bandwidth_tax` is the bytes that servers send, forwarded ones included, over the bytes of their
    own demand (TopoOpt paper, section 5.4); 1 if nothing is sent.
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
    schedules: bool = False,
) -> ArchitectureEstimate:
    """Simulates one iteration of `op_graph` split by `strategy` on `topology`.

    As `sim.predict`, with the topology's links, routes and rings; of `cluster` only the servers and
    their accelerators matter. With `schedules`, each AllReduce takes the fastest way, as in
    `lower_network`.

    Raises ValueError for an unknown accelerator, a strategy that does not fit `op_graph` or the
    cluster, another number of servers, or servers without a path.
    """
    check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)
    if topology.servers != cluster.servers:
        raise ValueError(
            f"topology: has {topology.servers} servers, and the cluster {cluster.servers}"
        )
    routes = Routes(topology)
    asked = demand(op_graph, strategy, cluster.servers)
    pairs = pairs_of(routes, asked, schedules=schedules)
    folded = lower_topology(routes, pairs, schedules=schedules)
    job = lower_job(op_graph, cluster, degrees_of([strategy]), micro_batches=micro_batches)
    simulated = _core.simulate_iteration(job, folded.network, strategy)
    link_bytes = routes.link_bytes(folded.edge_bytes(simulated.link_bytes))
    sent = sum(
        size
        for size, link in zip(link_bytes, topology.links, strict=True)
        if link.source < topology.servers
    )
    needed = demand_bytes(asked)
    return ArchitectureEstimate(
        simulated.iteration_s, simulated.compute_s, link_bytes, sent / needed if needed else 1.0
    )


def pairs_of(routes: Routes, asked: Demand, *, schedules: bool = False) -> set[Pair]:
    """The pairs of servers between which `asked` may move bytes: MP pairs and those of
    `ring_hops`."""
    pairs = {(pair.source, pair.target) for pair in asked.pairs if pair.size_bytes}
    for group in asked.groups:
        if group.size_bytes and len(group.servers) > 1:
            pairs |= ring_hops(routes.rings, group.servers, schedules=schedules)
    return pairs


def demand_bytes(asked: Demand) -> float:
    """Bytes of the servers' own demand: a ring AllReduce of S bytes among k sends 2 (k-1) S."""
    reduced = sum(2 * (len(group.servers) - 1) * group.size_bytes for group in asked.groups)
    return float(reduced + sum(pair.size_bytes for pair in asked.pairs))


# parameters: as `predict_on`; `options` are the level's own
def predict_architecture(
    topology: Topology,
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    level: str = "flow",
    micro_batches: int = 1,
    seed: int = 0,
    ring_steps: RingSteps = "together",
    schedules: bool = False,
    **options: Any,
) -> ArchitectureEstimate:
    """One iteration on what an entry of ARCHITECTURES built, also where circuits move during it.

    As `predict_on`; `options` are those of the packet level. Where circuits move, two iterations
    run in sequence: the time is that of the second, the bytes are the mean, and `link_bytes` is
    empty, since the links change. `seed` draws the paths of flows, and circuits without demand.
    Raises ValueError also as `run_flows`.
    """
    changed = bool(options) or ring_steps != "together"
    if topology.reconfiguration is None and level == "flow" and not changed:
        return predict_on(
            topology, op_graph, cluster, strategy, micro_batches=micro_batches, schedules=schedules
        )
    link_bytes: tuple[int, ...] = ()
    iterations = 1
    if topology.reconfiguration is None:
        program = architecture_program(
            topology, op_graph, cluster, strategy, micro_batches=micro_batches, seed=seed,
            ring_steps=None if schedules and ring_steps == "together" else ring_steps,
        )  # fmt: skip
        result = run_program(program, level=level, **routed(options, topology))
        iteration_s = result.completion_s
        by_servers = [link.source < topology.servers for link in topology.links]
        sent_bytes = float(result.link_bytes[by_servers].sum())
        link_bytes = tuple(round(size) for size in result.link_bytes.tolist())
    else:
        moving = MovingCircuits(
            topology, op_graph, cluster, strategy, level=level, micro_batches=micro_batches,
            seed=seed, ring_steps=ring_steps,
        )  # fmt: skip
        iterations = len(moving.ends)
        result = moving.run(**options)
        first, last = result.finish_s[moving.ends[0]], result.finish_s[moving.ends[-1]]
        iteration_s = float(last - first) / (iterations - 1)
        sent_bytes = float(result.link_bytes.sum()) / iterations
    needed = demand_bytes(demand(op_graph, strategy, cluster.servers))
    return ArchitectureEstimate(
        iteration_s,
        float(result.device_busy_s.max()) / iterations,
        link_bytes,
        sent_bytes / needed if needed else 1.0,
    )
