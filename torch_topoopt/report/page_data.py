"""The figures that the page's scripts draw, as plain data: what templates/*.js read.

Servers, links, cables and rings are named by index. Sizes are bytes, times seconds, rates Gb/s.
Scripts draw only from this data, never from the tables of the page.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from torch_topoopt.plan import cables
from torch_topoopt.plan.units import format_gbps
from torch_topoopt.report.results import (
    NumberedRing,
    as_fraction,
    compare_traffic,
    find_accuracy,
    numbered_rings,
    path_lengths,
    ring_families,
    training_curves,
)

if TYPE_CHECKING:
    from torch_topoopt.plan import Plan
    from torch_topoopt.report.analysis import Analysis
    from torch_topoopt.report.analysis.iteration import SimulatedIteration
    from torch_topoopt.report.run_folder import Run

_MOST_SERVERS_OF_FORCES = 1024
_MOST_SERVERS_OF_DEMAND = 512
_MOST_STEPS = 3600  # of the distribution of step time: the last hour
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LEVELS = _DIGITS[:32]  # of utilisation, from 0 to 1


def page_data(run: Run, analysis: Analysis) -> dict[str, Any]:
    """The data of the scripts for one run or plan."""
    plan = run.plan
    return {
        "name": plan.model or "rings and routes",
        "servers": plan.cluster.servers,
        "degree": plan.cluster.degree,
        "batch": plan.batch_size,
        "duplex": plan.cluster.ports == "duplex",
        "rate": format_gbps(plan.cluster.link_gbps),
        "iteration_s": plan.prediction.iteration_s if plan.predicts_time else None,
        "compute_s": plan.prediction.compute_s if plan.predicts_time else None,
        "measured_s": run.metrics.iterations.seconds
        if run.metrics and run.metrics.iterations
        else None,
        "links": [[e.source, e.source_port, e.target, e.target_port] for e in plan.network.links],
        "gbps": [plan.cluster.gbps_of(link) for link in plan.network.links]
        if plan.cluster.port_gbps
        else plan.cluster.link_gbps,
        **_network(plan),
        "hops": path_lengths(plan.network),
        "traffic": _traffic(run),
        "demand": _demand(plan),
        "timeline": _timeline(analysis.iteration),
        "what_if": asdict(analysis.what_if) if analysis.what_if else None,
        "losses": _losses(analysis),
        "costs": [asdict(row) for row in analysis.costs],
        "search": [[s.evaluations, s.current_s, s.best_s] for s in plan.search],
        "steps": [step.step_s for step in run.metrics.steps[-_MOST_STEPS:]] if run.metrics else [],
        "training": _training(run),
    }


# ---- network -------------------------------------------------------------------------------------


def _network(plan: Plan) -> dict[str, Any]:
    """`families`: rings that lie on the same cables, such as +1 and -1; `cables`: server, server,
    family of the first ring on it (-1: none), index of its first link."""
    rings = numbered_rings(plan.network)
    family_of_ring = ring_families(rings)
    family_of_pair: dict[frozenset[int], int] = {}
    for ring, family in zip(rings, family_of_ring, strict=True):
        for hop in ring.hops:
            family_of_pair.setdefault(frozenset(hop), family)
    links = plan.network.links
    ends = [
        (links[c[0]].source, links[c[0]].target, c[0]) for c in cables(plan.cluster, plan.network)
    ]
    return {
        "rings": [_ring(ring, family) for ring, family in zip(rings, family_of_ring, strict=True)],
        "families": [
            _family(plan, [r for r, f in zip(rings, family_of_ring, strict=True) if f == family])
            for family in range(max(family_of_ring, default=-1) + 1)
        ],
        "cables": [[a, b, family_of_pair.get(frozenset((a, b)), -1), link] for a, b, link in ends],
        "places": _force_layout(plan.cluster.servers, [(a, b) for a, b, _ in ends]),
    }


def _ring(ring: NumberedRing, family: int) -> dict[str, Any]:
    return {
        "order": ring.ring.servers, "share": ring.ring.share, "stride": ring.stride_text,
        "family": family, "group": ring.group,
    }  # fmt: skip


def _family(plan: Plan, rings: list[NumberedRing]) -> dict[str, Any]:
    first = rings[0]
    size = len(first.ring.servers)
    name = f"ring {first.number}"
    if first.stride is not None:
        stride = min(first.stride, size - first.stride)
        both = len({ring.stride for ring in rings}) > 1
        name = f"{'±' if both else '+'}{stride if both else first.stride}"
    group = plan.network.groups[first.group].servers
    linked = {(link.source, link.target) for link in plan.network.links}
    return {
        "name": name,
        "rings": [ring.number for ring in rings],
        "share": sum(ring.ring.share for ring in rings),
        "servers": size,
        "whole": len(group) == plan.cluster.servers,
        "relayed": sum(hop not in linked for hop in first.hops),
    }


def _force_layout(servers: int, pairs: list[tuple[int, int]]) -> list[list[float]]:
    """x and y of every server between 0 and 1; none for a network that forces cannot sort."""
    if servers > _MOST_SERVERS_OF_FORCES or servers < 2:
        return []
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(servers))
    graph.add_edges_from(pairs)
    start = {  # a perturbed circle, because forces balance on an exact one
        s: (math.cos(2 * math.pi * s / servers), math.sin(2 * math.pi * s / servers) * 0.9)
        for s in range(servers)
    }
    steps = 80 if servers <= 160 else 40
    places = nx.spring_layout(graph, pos=start, iterations=steps, seed=1, method="force")
    xs, ys = ([float(places[s][axis]) for s in range(servers)] for axis in (0, 1))
    wide = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    return [
        [
            round(0.5 + (x - (max(xs) + min(xs)) / 2) / wide, 4),
            round(0.5 + (y - (max(ys) + min(ys)) / 2) / wide, 4),
        ]
        for x, y in zip(xs, ys, strict=True)
    ]


# ---- traffic and time ----------------------------------------------------------------------------


def _traffic(run: Run) -> dict[str, Any] | None:
    traffic = compare_traffic(run)
    predicted = None if traffic.basis == "measured" else list(traffic.predicted)
    if traffic.basis == "predicted" and not run.plan.predicts_bytes:
        return None
    measured = None if traffic.basis == "predicted" else list(traffic.measured)
    return {"basis": traffic.basis, "predicted": predicted, "measured": measured}


def _demand(plan: Plan) -> dict[str, Any] | None:
    """The bytes from every server to every other, from pairs and AllReduce rings (TopoOpt paper,
    Figure 1). One character for each pair, row by row: "0" for nothing, else 1 to 35 on a
    logarithmic scale from `low` to `high`."""
    size = plan.cluster.servers
    if not 2 <= size <= _MOST_SERVERS_OF_DEMAND:
        return None
    matrix = np.zeros((size, size))
    for pair in plan.demand.pairs:
        matrix[pair.source, pair.target] += pair.size_bytes
    wanted = {tuple(sorted(g.servers)): g.size_bytes for g in plan.demand.groups}
    for group in plan.network.groups:
        size_bytes = wanted.get(tuple(sorted(group.servers)), 0)
        members = len(group.servers)
        for ring in group.rings:
            hop_bytes = 2 * (members - 1) / members * ring.share * size_bytes
            for hop in ring.hops:
                matrix[hop] += hop_bytes
    if not matrix.any():
        return None
    low, high = float(matrix[matrix > 0].min()), float(matrix.max())
    steps = np.zeros_like(matrix)
    asked = matrix > 0
    spread = math.log(high / low) or 1.0
    steps[asked] = 1 + np.round(np.log(matrix[asked] / low) / spread * 34)
    levels = "".join(_DIGITS[int(step)] for step in steps.ravel())
    return {"levels": levels, "low": low, "high": high}


def _timeline(iteration: SimulatedIteration | None) -> dict[str, Any] | None:
    if iteration is None:
        return None
    top = len(_LEVELS) - 1
    return {
        "iteration_s": iteration.iteration_s,
        "cargoes": [asdict(cargo) for cargo in iteration.cargoes],
        "link_bytes": [[round(size) for size in row] for row in iteration.link_bytes.tolist()],
        "computing": iteration.computing.round(4).tolist(),
        "utilisation": [
            "".join(_LEVELS[round(value * top)] for value in row)
            for row in iteration.utilisation.tolist()
        ],
    }


def _losses(analysis: Analysis) -> dict[str, Any] | None:
    lost = analysis.losses
    if lost is None:
        return None
    return {
        "all_reduce_s": lost.all_reduce_s,
        "busiest_s": lost.busiest_s,
        "iteration_s": lost.iteration_s,
        "classes": [asdict(entry) for entry in lost.classes],
        "cables": [
            {
                "class": loss.of_class, "pairs": loss.pairs, "given_up": loss.rings_given_up,
                "of": loss.rings, "detours": loss.detours, "all_reduce_s": loss.all_reduce_s,
                "busiest_s": loss.busiest_s,
            }
            for loss in lost.losses
        ],
    }  # fmt: skip


def _training(run: Run) -> dict[str, Any] | None:
    if run.metrics is None:
        return None
    curves = training_curves(run.metrics.train)
    accuracy = find_accuracy(run.metrics.train)
    goal = accuracy.goal if accuracy and accuracy.goal_is_target else None
    return {
        "axis": curves.axis,
        "goal": goal,
        "accuracies": [
            [s.key, [[x, v * as_fraction(y for _, y in s.points)] for x, v in s.points]]
            for s in curves.accuracies
        ],
        "losses": [[s.key, [list(point) for point in s.points]] for s in curves.losses],
    }
