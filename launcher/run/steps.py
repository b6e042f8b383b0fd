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
    from collections.abc import Callable, Iterable

    from torch_topoopt.launcher.run.options import RunOptions
    from torch_topoopt.op_graph import GradientBuckets, OpGraph
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script import CommunicationTrace
    from torch_topoopt.profile.script.step_events import StepEvent
    from torch_topoopt.profile.script.step_timing import StepTiming

    Progress = Callable[[float | None, str], None]

_APART = 0.1  # relative difference of bytes between calls of data parallelism and a script's own


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
) -> tuple[OpGraph, StepTiming | None, str]:
    """`graph` with the script's measured times, the measurement, and one line about it.

    The line is empty if nothing is to be measured.
    """
    graph = replace(graph, gradient_buckets=buckets_of(options))
    if not measures(options):
        return graph, None, ""
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

    again, _, line = _measured(graph, options, plan, progress, server)
    if again is not graph:
        plan = Planning(again, plan.cluster, _options(options, plan)).priced(plan)
    return again, plan, line


def measured_layout(
    graph: OpGraph, plan: Plan, options: RunOptions, server: ForkServer | None
) -> tuple[OpGraph, Plan, CommunicationTrace | None, str]:
    """The model and the plan of a layout with the times of its steps, the calls of one, and a line
    about them.

    Both as they are, and no calls, if steps are not measured.
    """
    from torch_topoopt.profile.script.runner import ScriptError, TrainingScript
    from torch_topoopt.profile.script.step_timing import trace_of
    from torch_topoopt.sim.layout_program import with_measured_ranks

    if not measures(options):
        return graph, plan, None, ""
    try:
        timing = _timing(options, plan, server)
    except ScriptError as error:
        return graph, plan, None, f"steps were not measured, so times are estimates: {error}"
    torchrun = options.torchrun
    script = TrainingScript(torchrun.training_script, tuple(torchrun.training_script_args))
    plan, line = priced_by_steps(plan, timing, options, server)
    graph = with_measured_ranks(graph, plan, timing.computation_s, timing.ranks_at_once)
    return graph, plan, trace_of(script, timing), line


def communicates_itself(events: Iterable[StepEvent], graph: OpGraph) -> bool:
    """Whether the calls of a rank's step differ from the AllReduces of data parallelism."""
    from torch_topoopt.profile.script.step_events import bytes_by_operation

    expected = graph.parameter_gradient_bytes
    sizes = bytes_by_operation(events)
    reduced = sizes.pop("AllReduce", 0)
    return abs(reduced - expected) > _APART * expected or sum(sizes.values()) > _APART * expected


def priced_by_steps(
    plan: Plan, timing: StepTiming | None, options: RunOptions, server: ForkServer | None
) -> tuple[Plan, str]:
    """The plan of a traced script with the times of its steps, and one line about them.

    Without `timing`, the steps are measured. If they cannot be, nothing but bytes is predicted.
    """
    from torch_topoopt.launcher.run import fabrics
    from torch_topoopt.plan.codec import DocumentError
    from torch_topoopt.planner.demand_plan import with_script_times
    from torch_topoopt.profile.script.runner import ScriptError

    if timing is None and not measures(options):
        return plan, ""
    try:
        timing = timing or _timing(options, plan, server)
        plan = with_script_times(
            plan,
            timing,
            payload_share=fabrics.payload_share(
                options.fabric, options.relay, options.switch_delay_s
            ),
            pacing=fabrics.link_pacing(
                options.fabric, options.relay, options.switch_delay_s, options.gbps
            ),
            algorithm=os.environ.get("TOPOOPT_ALGORITHM", "auto"),
        )
    except (ScriptError, DocumentError) as error:
        return plan, f"no time is predicted, since steps were not measured: {error}"
    return plan, _described(timing, plan.cluster)


def _timing(options: RunOptions, plan: Plan, server: ForkServer | None) -> StepTiming:
    """A few steps of the script as all ranks of `plan`; raises ScriptError."""
    from torch_topoopt.profile.script.runner import ScriptError
    from torch_topoopt.profile.script.step_timing import time_steps

    torchrun, cluster = options.torchrun, options.cluster
    if torchrun.module or torchrun.no_python or torchrun.run_path:
        raise ScriptError("only a script that is named as a file can be measured")
    with tempfile.TemporaryDirectory(prefix="topoopt-steps-") as name:
        path = Path(name) / "plan.json"
        documents.save(plan, str(path))
        return time_steps(
            torchrun.training_script,
            torchrun.training_script_args,
            world_size=cluster.servers * cluster.accelerators_per_server,
            ranks_per_server=cluster.accelerators_per_server,
            variables={"TOPOOPT_PLAN": str(path)},
            server=server,
        )


def _measured(
    graph: OpGraph,
    options: RunOptions,
    plan: Plan,
    progress: Progress,
    server: ForkServer | None,
) -> tuple[OpGraph, StepTiming | None, str]:
    from torch_topoopt.profile.script.runner import ScriptError
    from torch_topoopt.search.measured_step import with_measured_step

    cluster = options.cluster
    progress(None, "a few steps without messages")
    try:
        timing = _timing(options, plan, server)
    except ScriptError as error:
        return graph, None, f"steps were not measured, so computation is an estimate: {error}"
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
    return graph, timing, _described(timing, cluster)


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


def _options(options: RunOptions, plan: Plan | None) -> PlanningOptions:
    from torch_topoopt.planner.options import PlanningOptions

    fixed = plan.network if plan is not None and plan.mode == "fixed" else None
    return PlanningOptions(
        seed=options.planning.options.seed, strategy_space="data-parallel", network=fixed
    )
