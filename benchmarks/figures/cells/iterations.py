"""One iteration of a model, planned for TopoOpt and on every other network (Figures 11, 27, 28)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures.cells import one_link_tree
from figures.cells.workloads import cluster_of, graph_of, network_of
from torch_topoopt.architectures import topoopt
from torch_topoopt.comparison.compare import compare
from torch_topoopt.comparison.estimate import predict_on
from torch_topoopt.planner.alternation import Planning, plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.traffic import demand
from torch_topoopt.search.two_levels import SearchOptions

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Plan

_TREE = f"{Path(one_link_tree.__file__).resolve()}:build"
NETWORKS = {
    "Ideal Switch": "ideal-switch",
    "TopoOpt, paper": "topoopt",
    "Fat-tree, Table 2": "fat-tree",
    "Fat-tree, d B' = B": _TREE,
    "Oversub. Fat-tree": "oversubscribed-fat-tree",
    "Expander": "jellyfish",
    "OCS-reconfig": "ocs-reconfig",
    "SiP-ML": "sip-ml",
}


def options_of(evaluations: int, seed: int) -> PlanningOptions:
    """Two rounds of so many proposals, by one thread: cells run beside one another."""
    search = SearchOptions(workers=1)
    return PlanningOptions(
        seed=seed, rounds=2, evaluations=evaluations, search=search, schedules=False
    )


def plan_each_mode(
    op_graph: OpGraph, cluster: Cluster, options: PlanningOptions
) -> tuple[Plan, Plan]:
    """The Plans of mode paper and of mode best, as `plan` gives them; `options.mode` is not asked.

    Mode best goes on from what mode paper finds, so both take hardly longer than the second alone.
    Raises as `plan`.
    """
    best = Planning(op_graph, cluster, replace(options, mode="best"))
    found = best.run()
    of_paper = best.of_mode_paper
    return of_paper or plan(op_graph, cluster, replace(options, mode="paper")), found


# parameters: the model, its cluster, and the search
def on_every_network(
    *, model: str, servers: int, degree: int, gbps: float, evaluations: int, seed: int
) -> Any:
    """Seconds of an iteration on each of NETWORKS, and on TopoOpt's networks of other modes.

    "TopoOpt, released" is the plan's strategy on the artifact's network for it. "TopoOpt, best" is
    the faster of the plan of mode best and what the comparison found for mode paper, which a search
    would begin at.
    """
    graph = graph_of(model, servers)
    cluster = cluster_of(servers, degree, gbps)
    options = options_of(evaluations, seed)
    planned, of_mode_best = plan_each_mode(graph, cluster, options)
    found = compare(
        graph, cluster, tuple(NETWORKS.values()), options=options, plan=planned, schedules=False
    )
    rows = {row.architecture: row for row in found.rows}
    times = {name: rows[key].iteration_s for name, key in NETWORKS.items() if key in rows}
    strategy = found.strategies["topoopt"]
    impossible = dict(found.impossible)
    try:
        network = network_of(cluster, demand(graph, strategy, servers), "released", seed)
    except ValueError as error:  # the artifact has not enough strides for small groups
        impossible["TopoOpt, released"] = str(error)
    else:
        released = predict_on(topoopt.build(cluster, network=network), graph, cluster, strategy)
        times["TopoOpt, released"] = released.iteration_s
    best = of_mode_best.prediction.iteration_s
    times["TopoOpt, best"] = min(best, times["TopoOpt, paper"])
    return {
        "iteration_s": times,
        "planned_best_s": best,
        "compute_s": rows["ideal-switch"].compute_s,
        "table_2_gbps": found.equal_cost_gbps,
        "bandwidth_tax": rows["topoopt"].bandwidth_tax,
        "strategy_from": {n: rows[key].strategy for n, key in NETWORKS.items() if key in rows},
        "impossible": impossible,
    }


# parameters: the model, its cluster, and the search
def on_topoopt(
    *, model: str, servers: int, degree: int, gbps: float, evaluations: int, seed: int
) -> Any:
    """Seconds of an iteration as TopoOpt plans it in mode paper."""
    graph = graph_of(model, servers)
    planned = plan(graph, cluster_of(servers, degree, gbps), options_of(evaluations, seed))
    return {"iteration_s": planned.prediction.iteration_s}
