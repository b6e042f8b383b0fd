"""`topoopt plan`: strategy, network and routes for a model on a cluster."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt import planning_defaults
from torch_topoopt.launcher import (
    console,
    documents,
    explain_tables,
    failure_tables,
    parser,
    plan_tables,
    strategy_files,
)
from torch_topoopt.launcher.errors import OK, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network, Plan
    from torch_topoopt.search.explain import Explanation

_DESCRIPTION = """\
Decides how to split a model over the servers, how to wire their ports and how to route the bytes,
alternating between the two until neither improves. MODEL is the name of a shipped model, a file and
a callable (file.py:callable), a script that has a build_model(), or an opgraph.json."""

_EXAMPLES = """\
  topoopt plan vgg --servers 16 --degree 4 --bandwidth 25Gbps
  topoopt plan dlrm --servers 32 --degree 4 --bandwidth 100Gbps --mode best
  topoopt plan opgraph.json --servers 8 --degree 2 --bandwidth 100Gbps --accelerator a100 --json
  topoopt plan train.py --cluster lab.yaml    # on cables that are plugged already
  topoopt plan vgg --servers 16 --degree 4 --bandwidth 25Gbps --failures    # what losses cost"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("plan", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "model", metavar="MODEL", help="name, file.py:callable, script.py or *.json"
    )
    options.add_argument("--servers", type=int, help="number of servers")
    options.add_argument("--degree", type=int, help="ports of each server")
    options.add_argument(
        "--bandwidth",
        type=parser.rate,
        metavar="RATE",
        help="of a port, per direction, with its unit: 25Gbps, 200Mbps",
    )
    options.add_argument("--ports", choices=["duplex", "simplex"], help="default: duplex")
    options.add_argument(
        "--parallel-links",
        action="store_true",
        help="allow a degree above servers - 1: further rings and cables join the same servers",
    )
    options.add_argument(
        "--cluster",
        metavar="CLUSTER.yaml",
        help="instead of these four: the machines of this file; where they are joined by cables, "
        "the network is given and only the strategy is searched",
    )
    options.add_argument(
        "--accelerator",
        default="a100",
        help="device or device:format, as h100 or a100:bf16 (default: a100)",
    )
    options.add_argument(
        "--strategy-space",
        choices=["full", "samples", "data-parallel"],
        default="full",
        help="what to search: any split and placement (default), splits of samples only, as the "
        "paper does, or nothing: data parallelism",
    )
    parser.add_routing_option(options)
    options.add_argument(
        "--mode",
        choices=["paper", "best"],
        default="paper",
        help="how the network is found: by the paper's rules (default), or searched from there on, "
        "which takes longer and is never worse",
    )
    options.add_argument(
        "--rounds",
        type=int,
        default=planning_defaults.DEFAULT_ROUNDS,
        help="most rounds of the alternation (default: %(default)s)",
    )
    options.add_argument(
        "--evaluations",
        type=int,
        default=planning_defaults.DEFAULT_EVALUATIONS,
        help="strategies tried in each round (default: %(default)s)",
    )
    options.add_argument(
        "--failures",
        action=argparse.BooleanOptionalAction,
        help="show what the loss of any one cable or server costs; the plan says how to go on "
        "then, unless --no-failures leaves that out",
    )
    options.add_argument("--seed", type=int, default=0, help="same seed, same plan (default: 0)")
    options.add_argument(
        "-o", "--output", metavar="FILE", default="plan.json", help="default: plan.json"
    )
    _add_strategy_options(options)
    _add_search_options(options)
    parser.add_batch_size_option(options, shared=True)
    parser.add_costs_option(options)
    parser.add_json_option(options)
    return options


def _add_strategy_options(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--strategy",
        metavar="FILE",
        help="begin the search at the strategy of this file: native JSON, a plan, or FlexFlow's "
        "text; with --evaluations 0 it is kept, wired and priced as it is",
    )
    options.add_argument(
        "--export-strategy",
        metavar="FILE",
        help="write the strategy to a file of its own: native JSON if the name ends in .json, else "
        "FlexFlow's text",
    )
    options.add_argument(
        "--micro-batches",
        type=parser.micro_batches,
        metavar="N",
        help="work on the batch in N equal parts and consider pipelines: a number, several to "
        "choose from (1,4,8), or auto: 1, 2, 4, ... 32 (default: 1, or what the --strategy file "
        "says)",
    )
    options.add_argument(
        "--optimizer-state",
        type=float,
        default=0.0,
        metavar="FACTOR",
        help="bytes that the optimizer keeps for each byte of gradients, which must fit into "
        "memory: 1 for momentum, 2 for Adam (default: 0)",
    )


def _add_search_options(options: argparse.ArgumentParser) -> None:
    from torch_topoopt.planning_options import ABLATIONS
    from torch_topoopt.search.chains import DEFAULT_CHAINS

    options.add_argument(
        "--ablation",
        choices=ABLATIONS,
        default="both",
        help="leave out one half of the alternation: search-only keeps the network for data "
        "parallelism; topology-only wires once for a strategy searched on an ideal switch, the "
        "paper's naive approach (default: both halves)",
    )
    options.add_argument(
        "--chains",
        type=int,
        default=DEFAULT_CHAINS,
        help="searches side by side that share the strategies to try (default: %(default)s); the "
        "plan depends on their number and not on how many run at a time",
    )
    options.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run the chains as tasks of the Ray cluster at ADDRESS, or of the one on this machine "
        "(auto); default: in threads here",
    )
    options.add_argument(
        "--explain",
        action="store_true",
        help="show how every large operator is split, and what the iteration would take with the "
        "best other ways, by the simulator of the search",
    )


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    cluster, network = _cluster(arguments)
    terminal = console.Terminal(json_output=arguments.json)
    try:
        with terminal.progress(f"planning {arguments.model}") as progress:
            progress(None, "profiling")
            graph = documents.op_graph_of(
                arguments.model,
                arguments.batch_size,
                accelerators=cluster.servers * cluster.accelerators_per_server,
                costs=arguments.costs,
            )
            plan = _make_plan(arguments, graph, cluster, network, progress)
    except documents.StoppedEarly as stopped:
        _keep(terminal, graph, stopped.plan, arguments)
        console.warning(
            f"stopped by {stopped.by.signum.name}: {arguments.output} is the best plan until then"
        )
        return stopped.by.exit_code
    _keep(terminal, graph, plan, arguments)
    return OK


def _keep(terminal: Terminal, graph: OpGraph, plan: Plan, arguments: argparse.Namespace) -> None:
    documents.save(plan, arguments.output)
    explained = _explained(graph, plan, arguments) if arguments.explain else None
    _print(terminal, plan, arguments, explained)
    if arguments.export_strategy is not None:
        strategy_files.save_strategy(arguments.export_strategy, graph, plan)


def _explained(
    graph: OpGraph, plan: Plan, arguments: argparse.Namespace
) -> tuple[Explanation, ...]:
    from torch_topoopt.search.explain import explain
    from torch_topoopt.search.strategy_space import DIMENSIONS

    return explain(
        graph,
        plan.cluster,
        plan.network,
        plan.strategy,
        dimensions=DIMENSIONS if plan.strategy_space == "full" else (),
        micro_batches=plan.micro_batches,
        optimizer_factor=arguments.optimizer_state,
    )


def _make_plan(
    arguments: argparse.Namespace,
    graph: OpGraph,
    cluster: Cluster,
    network: Network | None,
    progress: Callable[[float | None, str], None],
) -> Plan:
    from torch_topoopt.planning_options import PlanningOptions
    from torch_topoopt.search.two_levels import SearchOptions

    strategy = None
    micro_batches = 1 if arguments.micro_batches is None else arguments.micro_batches
    if arguments.strategy is not None:
        count = arguments.micro_batches if isinstance(arguments.micro_batches, int) else None
        strategy, in_file = strategy_files.load_strategy(
            arguments.strategy, graph, cluster.servers, count
        )
        micro_batches = arguments.micro_batches or in_file
    options = PlanningOptions(
        seed=arguments.seed,
        strategy_space=arguments.strategy_space,
        rounds=arguments.rounds,
        evaluations=arguments.evaluations,
        mode=arguments.mode,
        ablation=arguments.ablation,
        network=network,
        routing=arguments.routing,
        search=SearchOptions(chains=arguments.chains, ray=arguments.ray),
        strategy=strategy,
        micro_batches=micro_batches,
        optimizer_factor=arguments.optimizer_state,
    )
    plan = documents.make_plan(graph, cluster, options, progress, keep_best=True)
    if arguments.failures is not False:
        plan = documents.with_failures(plan, progress)
    return plan


def _cluster(arguments: argparse.Namespace) -> tuple[Cluster, Network | None]:
    """What to plan for, and its network if that is there; raises InputError, FabricError."""
    described = ("servers", "degree", "bandwidth", "ports")
    if arguments.cluster is None:
        for option in described[:3]:
            if getattr(arguments, option) is None:
                raise InputError(
                    f"{option}: missing; give --{option}, or the machines in a --cluster file (see "
                    "`topoopt plan --help`)"
                )
        cluster = parser.make_cluster(
            arguments.servers,
            arguments.degree,
            arguments.bandwidth,
            arguments.ports or "duplex",
            arguments.accelerator,
            parallel_links=arguments.parallel_links,
        )
        return cluster, None
    for option in (*described, "parallel_links"):
        value = getattr(arguments, option)
        if value is not None and value is not False:
            name = option.replace("_", "-")
            raise InputError(f"{name}: the cluster file says it; leave --{name} out")
    from torch_topoopt.fabric.cluster.cluster_file import load_cluster
    from torch_topoopt.fabric.cluster.static_plan import cluster_of, network_of
    from torch_topoopt.fabric.cluster.switched_plan import cluster_on_switches

    parser.check_accelerator(arguments.accelerator)
    file = load_cluster(arguments.cluster)
    if file.switches:
        return replace(cluster_on_switches(file), accelerator=arguments.accelerator), None
    return replace(cluster_of(file), accelerator=arguments.accelerator), network_of(file)


def _print(
    terminal: Terminal,
    plan: Plan,
    arguments: argparse.Namespace,
    explained: tuple[Explanation, ...] | None,
) -> None:
    output = arguments.output
    if arguments.json:
        figures = plan_tables.figures(plan)
        if arguments.failures and plan.failures is not None:
            figures["failures"] = failure_tables.failure_summary(plan)
        if explained is not None:
            figures["explain"] = explain_tables.figures(explained)
        console.print_json({**figures, "plan": output})
        return
    plan_tables.show_plan(terminal, plan)
    if explained is not None:
        explain_tables.show(terminal, explained)
    if arguments.failures and plan.failures is not None:
        failure_tables.show_failures(terminal, plan)
    terminal.line(f"plan: {output}")
