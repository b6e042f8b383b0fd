"""Iterations of the HammingMesh paper's training jobs on its small networks, at flow level and
packet by packet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from figures.papers.hammingmesh import LINK_GBPS, PLANES, cluster_of, networks
from figures.papers.packet_bandwidth import OPTIONS, one_plane
from figures.papers.training_workloads import WORKLOADS
from torch_topoopt.comparison.cable_cost import cable_parts
from torch_topoopt.comparison.estimate import predict_on
from torch_topoopt.comparison.same_time import scaled
from torch_topoopt.planner.mesh.pricing import GridPricing
from torch_topoopt.planner.mesh.server_order import best_order, naive
from torch_topoopt.sim import run_program
from torch_topoopt.sim.architecture_program import architecture_program, routed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from figures.papers.training_workloads import TrainingWorkload
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy


def iteration(*, workload: str, network: str, packets: bool, seed: int) -> Any:
    """Seconds of an iteration of `workload`, and what the network costs in all of its planes.

    The simulated network has a quarter of the planes, 1.6 Tb/s for an accelerator, as in the paper
    (Table II). Where accelerators lie in rows and columns, their order is searched; `in_order_s` is
    without: in the order of numbers, on the network's own rings. `apart_s`, of jobs with stages:
    with stages next to each other and the parts of an operator apart. `packet_s`, with `packets`:
    as `iteration_s`, packet by packet; `seed` is for the paths of that alone.
    """
    found = next(other for other in networks("small") if other.name == network)
    topology = scaled(found.topology, 1 / PLANES)
    job = WORKLOADS[workload]()
    cluster = replace(cluster_of(topology.servers), accelerator="a100", memory_limited=False)
    axes = job.axes
    apart = [
        (o * axes.data + d) * axes.pipeline + p
        for p in range(axes.pipeline)
        for d in range(axes.data)
        for o in range(axes.operator)
    ]

    def seconds(order: Sequence[int] | None) -> float:
        return predict_on(topology, job.op_graph, cluster, job.strategy(order)).iteration_s

    row = {
        "accelerators": topology.servers,
        "compute_s": job.compute_s,
        "cost": cable_parts(found.topology, LINK_GBPS).cost(),
        "printed_mdollar": found.printed.cost_mdollar,
        "apart_s": seconds(apart) if axes.pipeline > 1 else None,
    }
    plane = one_plane(found.topology, PLANES)
    if topology.grid is None:
        if packets:
            row["packet_s"] = _packet_seconds(plane, job, cluster, job.strategy(), seed)
        return row | dict.fromkeys(("iteration_s", "in_order_s"), seconds(None))
    pricing = GridPricing(job.op_graph, cluster, topology)
    placed = best_order(pricing, job.strategy())
    if packets:
        if placed.natural_rings:
            ringed = pricing.with_rings(placed.strategy)
            plane = replace(plane, rings=ringed.rings, group_rings=ringed.group_rings)
        row["packet_s"] = _packet_seconds(plane, job, cluster, placed.strategy, seed)
    return row | {
        "iteration_s": placed.iteration_s,
        "in_order_s": naive(pricing, job.strategy()).iteration_s,
        "placement": placed.how,
        "natural_rings": placed.natural_rings,
    }


def _packet_seconds(
    plane: Topology, job: TrainingWorkload, cluster: Cluster, strategy: Strategy, seed: int
) -> float:
    """Packets of Table III, which choose their links; the steps of a ring are one flow a hop."""
    program = architecture_program(plane, job.op_graph, cluster, strategy, seed=seed)
    options = routed(OPTIONS, plane)
    return run_program(program, level="packet", seed=seed, **options).completion_s
