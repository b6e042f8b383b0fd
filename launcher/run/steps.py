"""A few steps of the script without its messages, measured before an emulated run is planned.

All ranks of emulated servers share this machine, and a step is more than the operators of the
model: data loading, loss, optimizer, Python. That time is measured, not estimated. A plan beyond
data parallelism is measured again as planned, because remote operators, and the code that moves
tensors between them, take other times.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import documents
from torch_topoopt.op_graph import DEFAULT_BUCKETS
from torch_topoopt.plan.units import counted, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.op_graph import GradientBuckets, OpGraph
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script.step_timing import StepTiming

    Progress = Callable[[float | None, str], None]


def measures(options: RunOptions) -> bool:
    """Whether to measure steps: on emulated servers, if the model is the script's own."""
    return options.site is None and options.measure_steps and options.source.of_script


def buckets_of(options: RunOptions) -> GradientBuckets:
    """The buckets of gradients if no step is measured."""
    if options.planning.space not in ("full", "pipeline"):
        return DEFAULT_BUCKETS
    from torch_topoopt.parallel.gradients import BUCKETS

    return BUCKETS


def measured_graph(
    graph: OpGraph, options: RunOptions, progress: Progress, server: ForkServer | None = None
) -> tuple[OpGraph, str]:
    """`graph` with the script's measured times, and one line about the measurement.

    The line is empty if nothing is to be measured.
    """
    graph = replace(graph, gradient_buckets=buckets_of(options))
    if not measures(options):
        return graph, ""
    plan = documents.make_plan(
        graph, options.cluster, _options(options, None), documents.without_progress
    )
    return _measured(graph, options, plan, progress, server)


def measured_plan(
    graph: OpGraph,
    plan: Plan,
    options: RunOptions,
    progress: Progress,
    server: ForkServer | None = None,
) -> tuple[OpGraph, Plan, str]:
    """The same after measuring the steps of `plan` itself, and `plan` with its new prediction.

    Its rounds keep the prices of the search.
    """
    from torch_topoopt.planner.alternation import Planning

    again, line = _measured(graph, options, plan, progress, server)
    if again is not graph:
        plan = Planning(again, plan.cluster, _options(options, plan)).priced(plan)
    return again, plan, line


def _measured(
    graph: OpGraph,
    options: RunOptions,
    plan: Plan,
    progress: Progress,
    server: ForkServer | None,
) -> tuple[OpGraph, str]:
    from torch_topoopt.profile.script.runner import ScriptError
    from torch_topoopt.profile.script.step_timing import time_steps
    from torch_topoopt.search.measured_step import with_measured_step

    torchrun, cluster = options.torchrun, options.cluster
    progress(None, "a few steps without messages")
    if torchrun.module or torchrun.no_python or torchrun.run_path:
        return graph, _estimated("only a script that is named as a file can be measured")
    with tempfile.TemporaryDirectory(prefix="topoopt-steps-") as name:
        path = Path(name) / "plan.json"
        documents.save(plan, str(path))
        try:
            timing = time_steps(
                torchrun.training_script,
                torchrun.training_script_args,
                world_size=cluster.servers * cluster.accelerators_per_server,
                ranks_per_server=cluster.accelerators_per_server,
                variables={"TOPOOPT_PLAN": str(path)},
                server=server,
            )
        except ScriptError as error:
            return graph, _estimated(str(error))
    if timing.buckets is not None:
        graph = replace(graph, gradient_buckets=timing.buckets)
    at_once = timing.ranks_at_once / cluster.accelerators_per_server
    alone = min(1.0, at_once / cluster.servers)  # relative to a rank's time next to all others
    graph = with_measured_step(
        graph,
        cluster,
        plan.strategy,
        forward_s=timing.forward_s * alone,
        backward_s=timing.backward_s * alone,
        overhead_s=timing.rest_s * alone,
        servers_at_once=at_once if alone < 1 else None,
        micro_batches=plan.micro_batches,
    )
    return graph, _described(timing, cluster)


def _described(timing: StepTiming, cluster: Cluster) -> str:
    ranks = cluster.servers * cluster.accelerators_per_server
    processors = len(os.sched_getaffinity(0))
    return (
        f"measured {counted(timing.steps, 'step')} without messages: "
        f"{format_seconds(timing.step_s)} each (forward {format_seconds(timing.forward_s)}, "
        f"backward {format_seconds(timing.backward_s)}, optimizer, data and the rest "
        f"{format_seconds(timing.rest_s)}), {counted(ranks, 'rank')} on "
        f"{counted(processors, 'processor')}"
    )


def _estimated(why: str) -> str:
    return f"steps were not measured, so computation is an estimate: {why}"


def _options(options: RunOptions, plan: Plan | None) -> PlanningOptions:
    from torch_topoopt.planner.options import PlanningOptions

    fixed = plan.network if plan is not None and plan.mode == "fixed" else None
    return PlanningOptions(
        seed=options.planning.options.seed, strategy_space="data-parallel", network=fixed
    )
