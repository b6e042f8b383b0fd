"""`topoopt plan`: strategy, network and routes for a model on a cluster."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from torch_topoopt.launcher import (
    console,
    documents,
    parser,
    script_plan,
    shared_options,
    trace_options,
)
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.plan import (
    explain_tables,
    failure_tables,
    layout_tables,
    plan_tables,
    planning,
    strategy_files,
)
from torch_topoopt.plan.layout import SoftwareName

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network, Plan
    from torch_topoopt.planner.explain import Explanation
    from torch_topoopt.planner.layout_figures import LayoutFigures, OtherLayout
    from torch_topoopt.planner.options import PlanningOptions

_DESCRIPTION = """\
Decides how to split a model over the servers, how to wire their ports and how to route the bytes,
alternating between the two until neither improves. MODEL is the name of a shipped model, a file and
a callable (file.py:callable), a script, a configuration of transformers (config.json), or an
opgraph.json. Of a script without a build_model(), two iterations are run first, without a network,
and the network is planned for what they communicate."""

_EXAMPLES = """\
  topoopt plan vgg --servers 16 --degree 4 --bandwidth 25Gbps
  topoopt plan dlrm --servers 32 --degree 4 --bandwidth 100Gbps --mode best
  topoopt plan opgraph.json --servers 8 --degree 2 --bandwidth 100Gbps --accelerator a100 --json
  topoopt plan Llama-3.1-8B/config.json --servers 4 --accelerator gb10:bf16 --batch-size 8
  topoopt plan llama:8b --servers 4 --server-file nccl.xml --accelerator h100:bf16 --degree 2
  topoopt plan train.py --cluster lab.yaml    # on cables that are plugged already
  topoopt plan vgg --servers 16 --degree 4 --bandwidth 25Gbps --failures    # the cost of losses"""


@dataclass(frozen=True)
class PlanResult(plan_tables.PlanFigures):
    """The result of `topoopt plan`, with the paths of the plan and of the model's operators."""

    JSON_FIELDS: ClassVar = (
        *plan_tables.PlanFigures.JSON_FIELDS, "plan.layout", "layout_figures", "failures",
        "explain", "other_layouts", "plan=output", "op_graph",
    )  # fmt: skip
    OMIT_IF_NONE: ClassVar = ("layout", "layout_figures", "failures", "explain", "other_layouts")

    with_failures: bool | None
    explain: tuple[Explanation, ...] | None
    layout_figures: LayoutFigures | None
    other_layouts: tuple[OtherLayout, ...] | None
    output: str
    op_graph: str | None

    def failures(self) -> failure_tables.FailureSummary | None:
        if not self.with_failures or self.plan.failures is None:
            return None
        return failure_tables.failure_summary(self.plan)


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("plan", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "model", metavar="MODEL", help="name, file.py:callable, script.py or *.json"
    )
    options.add_argument(
        "--cluster",
        metavar="CLUSTER.yaml",
        help="instead of servers, ports and bandwidth: the machines of this file; where they are "
        "joined by cables, the network is given and only the strategy is searched",
    )
    shared_options.add(options, "server-file", *shared_options.PLANNING, *shared_options.TEXT)
    shared_options.add(options, "no-memory-limit")
    _add_layout_options(options)
    options.add_argument(
        "--export-strategy",
        type=shared_options.output_file,
        metavar="FILE",
        help="write the strategy to a file of its own: native JSON if the name ends in .json, else "
        "FlexFlow's text",
    )
    options.add_argument(
        "--explain",
        action="store_true",
        help="show how every large operator is split, and what the iteration would take with the "
        "best other ways, by the simulator of the search; of a layout, the best layouts of other "
        "kinds",
    )
    shared_options.add(
        options,
        "failures",
        action=argparse.BooleanOptionalAction,
        help="show what the loss of any one cable or server costs; the plan says how to go on "
        "then, on at most 256 servers, unless --no-failures leaves that out",
    )
    options.add_argument(
        "-o",
        "--output",
        type=shared_options.output_file,
        metavar="FILE",
        default="plan.json",
        help="the plan (default: plan.json)",
    )
    shared_options.add(options, "json")
    shared_options.add_verbosity(options)
    return options


def _add_layout_options(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--inside-bandwidth",
        type=parser.rate,
        metavar="RATE",
        help="rate in each direction between an accelerator and the others of its server, such as "
        "3600Gbps (default: that of the accelerator's usual box)",
    )
    options.add_argument(
        "--host-memory-gb",
        type=float,
        metavar="GB",
        help="memory of each server's host, where layouts may keep state (default: that of the "
        "accelerator's usual box, for as many accelerators as the server has)",
    )
    shared_options.add(options, "layout", "offload", "precision")
    options.add_argument(
        "--software",
        choices=get_args(SoftwareName),
        default="compiled",
        help="the trainer's overhead for layouts: compiled (default): compiled blocks or CUDA "
        "graphs; eager: plain PyTorch; megatron: fused and overlapped as there; nanotron: as "
        "published measurements of it",
    )


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    cluster, network = _cluster(arguments)
    terminal = console.Terminal.of(arguments)
    if documents.is_script_without_model(arguments.model):
        return _plan_traced(arguments, cluster, network, terminal)
    choice = planning.PlanningChoice.of(
        arguments, arguments.model, layout_spaces=("all", "layouts")
    )
    planning.check_counts(choice, cluster)
    try:
        with terminal.progress(f"planning {arguments.model}") as progress:
            progress(None, "profiling")
            graph, executable = _profiled(choice, arguments.model, cluster)
            cluster = documents.in_format_of(cluster, graph)
            terminal.note(
                planning.assumptions(cluster, choice.space, graph.model, graph.batch_size)
            )
            for line in planning.whole_model_lines(graph):
                terminal.note(line)
            plan = choice.plan(
                graph, cluster, progress, network=network, keep_best=True, **executable
            )
            plan = documents.with_failures(plan, progress, arguments.failures)
    except documents.StoppedEarly as stopped:
        _keep(terminal, graph, stopped.plan, arguments, choice.options)
        console.warning(
            f"stopped by {stopped.by.signum.name}: {arguments.output} is the best plan until then"
        )
        return stopped.by.exit_code
    _keep(terminal, graph, plan, arguments, replace(choice.options, network=network))
    return OK


def _profiled(
    choice: planning.PlanningChoice, model: str, cluster: Cluster
) -> tuple[OpGraph, dict[str, Any]]:
    """The OpGraph, and how `choice.plan` knows what a script can execute that divides its model."""
    by_script = model.endswith(".py") and planning.divides_model(model)
    if not by_script or choice.space == "data-parallel" or choice.strategy is not None:
        return choice.op_graph(model, cluster), {}
    if choice.space == "layouts":
        graph = choice.op_graph(model, cluster)
        return graph, {"why_not_layout": planning.why_not_layout(choice, graph, model, model)}
    graph, program = choice.graph_and_program(model, cluster)
    return graph, {"program": program}


def _plan_traced(
    arguments: argparse.Namespace, cluster: Cluster, network: Network | None, terminal: Terminal
) -> int:
    """The network for the demand in a trace of the script, as `topoopt run` plans it."""
    script = arguments.model
    advice = "; name a model instead of the script"
    planning.refuse_without_model(planning.given(arguments), arguments, script, advice)
    unknown = ("explain", "export_strategy", "no_memory_limit", "sequence", "task", "layout")
    for option in unknown:
        if getattr(arguments, option):
            planning.refuse_without_model([option.replace("_", "-")], arguments, script, advice)
    if cluster.servers * cluster.accelerators_per_server < 2:
        raise InputError(f"servers: {script} is traced, which needs at least 2 ranks")
    from torch_topoopt.planner.demand_plan import plan_for_demand
    from torch_topoopt.profile.script import TrainingScript

    limits = trace_options.limits()
    terminal.note(planning.assumptions(cluster))
    terminal.line(
        f"tracing {script}, which has no build_model(): its first iterations are run without a "
        f"network, to see what they communicate (at most {limits.time_s:g} s)"
    )
    with terminal.progress(f"planning {script}") as progress:
        progress(None, "tracing")
        traced = script_plan.Script(TrainingScript(script, ()), limits)
        demand, trace, why = script_plan.demand_of_script(traced, cluster)
        if trace is None:
            raise InputError(f"model: {why}; `topoopt run --model none` plans without a trace")
        with input_errors():
            plan = plan_for_demand(
                cluster,
                demand,
                trace,
                name=script_plan.name_of(script, module=False),
                seed=arguments.seed,
                network=network,
                mode=arguments.mode,
                routing=arguments.routing,
            )
        plan = documents.with_failures(plan, progress, arguments.failures)
    terminal.line(f"demand: {script_plan.demand_text(demand)}")
    documents.save(plan, arguments.output)
    result = PlanResult(plan, arguments.failures, None, None, None, arguments.output, None)
    _show(terminal, result, json_output=arguments.json)
    return OK


def _keep(
    terminal: Terminal,
    graph: OpGraph,
    plan: Plan,
    arguments: argparse.Namespace,
    options: PlanningOptions,
) -> None:
    documents.save(plan, arguments.output)
    documents.save(graph, str(documents.op_graph_path(arguments.output)))
    explained = figures = others = None
    if plan.layout is not None:
        from torch_topoopt.planner.layout_figures import layout_figures, other_layouts

        figures = layout_figures(graph, plan)
        if arguments.explain:
            others = other_layouts(graph, plan, options)
    elif arguments.explain:
        explained = _explained(graph, plan, options)
    _show(
        terminal,
        PlanResult(
            plan,
            arguments.failures,
            explained,
            figures,
            others,
            arguments.output,
            str(documents.op_graph_path(arguments.output)),
        ),
        json_output=arguments.json,
    )
    if arguments.export_strategy is not None:
        strategy_files.save_strategy(arguments.export_strategy, graph, plan)


def _explained(graph: OpGraph, plan: Plan, options: PlanningOptions) -> tuple[Explanation, ...]:
    from torch_topoopt.planner.explain import explain
    from torch_topoopt.search.strategy_space import DIMENSIONS

    return explain(
        graph,
        plan.cluster,
        plan.network,
        plan.strategy,
        dimensions=DIMENSIONS if plan.strategy_space == "full" else (),
        micro_batches=plan.micro_batches,
        optimizer_factor=options.optimizer_factor,
    )


def _cluster(arguments: argparse.Namespace) -> tuple[Cluster, Network | None]:
    """The demand to plan for, and an existing network; raises InputError, FabricError."""
    accelerator = arguments.accelerator or shared_options.DEFAULT_ACCELERATOR
    if arguments.cluster is None:
        if (server := shared_options.described_server(arguments)) is not None:
            console.Terminal(json_output=arguments.json).line(f"{arguments.server_file}: {server}")
        cluster = shared_options.cluster_of(
            arguments, accelerator, or_else=", or give the machines in a --cluster file"
        )
        return cluster, None
    if arguments.server_file is not None:
        raise InputError("server-file: is in the cluster file; leave --server-file out")
    shared_options.refuse_beside_cluster_file(arguments)
    from torch_topoopt.fabric.cluster.static_plan import cluster_of, network_of
    from torch_topoopt.fabric.cluster.switched_plan import cluster_on_switches
    from torch_topoopt.fabric.cluster_file.load import load_cluster

    parser.check_accelerator(accelerator)
    file = load_cluster(arguments.cluster)
    made = cluster_on_switches(file) if file.switches else cluster_of(file)
    inside = arguments.inside_bandwidth or made.inside_gbps
    made = replace(
        made,
        accelerator=accelerator,
        inside_gbps=inside,
        host_memory_gb=arguments.host_memory_gb,
    ).validate(any_degree=True)
    return made, None if file.switches else network_of(file)


def _show(terminal: Terminal, result: PlanResult, *, json_output: bool) -> None:
    if json_output:
        console.print_json(result)
        return
    plan = result.plan
    plan_tables.show_plan(terminal, plan)
    if result.layout_figures is not None:
        layout_tables.show_figures(terminal, result.layout_figures)
    if result.explain is not None:
        explain_tables.show(terminal, result.explain)
    if result.other_layouts is not None:
        layout_tables.show_others(terminal, result.other_layouts)
    if result.with_failures and plan.failures is not None:
        failure_tables.show_failures(terminal, plan)
    operators = f" (its model's operators: {result.op_graph})" if result.op_graph else ""
    terminal.line(f"plan: {result.output}{operators}")
