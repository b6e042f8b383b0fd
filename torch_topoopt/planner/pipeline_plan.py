"""Plans of pipelines: each candidate wired and priced, the fastest kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.planner.alternation import plan
from torch_topoopt.search.starts.pipelines import pipelines

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.planner.alternation import PlanProgress
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.strategies import Strategy


def plan_pipeline(
    op_graph: OpGraph,
    cluster: Cluster,
    options: PlanningOptions,
    *,
    stages: int | None = None,
    why_not: Callable[[Strategy], str] | None = None,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> Plan:
    """The executable pipeline with the least predicted time. `why_not` returns why a strategy is
    not executable, "" if it is.

    Candidates have all numbers of `stages`, or this one, and the micro-batches of the `options`
    that divide the batch. Each has stages of equal compute time and a network of its own. Raises
    ValueError where there is none, and as `plan`.
    """
    counts = [count for count in options.micro_batch_counts(op_graph.batch_size) if count > 1]
    why = "too few samples, too little memory, or no place where a single tensor passes"
    plans = []
    for candidate in pipelines(op_graph, cluster, counts):
        placements = frozenset(candidate.strategy)
        if stages and len({p.servers for p in placements}) != stages:
            continue
        if why_not is not None and (problem := why_not(candidate.strategy)):
            why = problem
            continue
        fixed = replace(
            options,
            evaluations=0,
            executable=placements.__contains__,
            strategy=candidate.strategy,
            micro_batches=candidate.micro_batches,
        )
        plans.append(plan(op_graph, cluster, fixed, on_progress=on_progress))
    if not plans:
        wanted = f" of {stages} stages" if stages else ""
        executed = " that can be executed" if why_not is not None else ""
        raise ValueError(
            f"strategy-space: there is no pipeline{wanted} for {op_graph.model} on "
            f"{cluster.servers} servers{executed}: {why}"
        )
    return min(plans, key=lambda plan: plan.prediction.iteration_s)
