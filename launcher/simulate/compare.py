"""`topoopt compare`: a model on every architecture: time, cost and bandwidth tax."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import console, packet_options, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.plan import plan_tables, planning
from torch_topoopt.plan.units import format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.comparison.compare import Comparison
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster

_DESCRIPTION = """\
Simulates one training iteration of a model on many kinds of network for the same servers: TopoOpt,
an ideal switch, a fat-tree of the same cost as TopoOpt, expanders, tori and others. Each gets the
best of the strategies that are found on it, for TopoOpt and on the ideal switch, and of those that
every search starts from. MODEL is the name of a shipped model, file.py:callable, a script or an
opgraph.json.

columns: rate, what a server can send; tax, bytes that servers send (forwarded ones included) over
those that they have to send; cost, of all network parts (TopoOpt paper, Table 2); value, iterations
per second that a million dollars buys; strategy, where it was found: own, on this architecture or
an ideal switch of its rate; topoopt, by the planner; ideal-switch; start."""

_EXAMPLES = """\
  topoopt compare dlrm --servers 128 --degree 4 --bandwidth 100Gbps
  topoopt compare vgg --servers 16 --degree 4 --bandwidth 25Gbps --architectures topoopt,fat-tree
  topoopt compare vgg --servers 16 --degree 4 --bandwidth 25Gbps --level packet --transport dctcp
  topoopt compare opgraph.json --servers 64 --degree 6 --bandwidth 100Gbps --plot compare.png"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("compare", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "model", metavar="MODEL", help="name, file.py:callable, script.py or *.json"
    )
    options.add_argument(
        "--architectures", metavar="NAME,...", help="which, in this order (default: all)"
    )
    searched = ("rounds", "evaluations")
    shared_options.add(options, *(n for n in shared_options.PLANNING if n not in searched))
    shared_options.add(options, "no-memory-limit")
    shared_options.add(options, "rounds", default=2)
    few = "strategies tried in each round (default: %(default)s)"
    shared_options.add(options, "evaluations", default=5000, help=few)
    packet_options.add_level(options)
    packet_options.add_options(options, seed=False)
    shared_options.add(options, "plot", "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    packet = packet_options.given_options(arguments, seed=False)
    choice = planning.PlanningChoice.of(arguments, arguments.model)
    cluster = shared_options.cluster_of(
        arguments, arguments.accelerator or shared_options.DEFAULT_ACCELERATOR
    )
    planning.check_stages(choice, cluster)
    shared_options.check_plot(arguments.plot)
    from torch_topoopt.architectures import ARCHITECTURES, architecture
    from torch_topoopt.comparison.compare import compare

    names = _names(arguments.architectures, tuple(ARCHITECTURES))
    terminal = console.Terminal(json_output=arguments.json)
    with terminal.progress(f"comparing {arguments.model}") as progress:
        progress(None, "profiling")
        with input_errors():
            for name in names:
                architecture(name)
            graph = choice.op_graph(arguments.model, cluster)
            terminal.line(
                planning.assumptions(cluster, choice.space, graph.model, graph.batch_size)
            )
            for line in planning.whole_model_lines(graph):
                terminal.line(line)
            plan = choice.plan(graph, cluster, progress)
            comparison = compare(
                graph,
                cluster,
                names,
                options=choice.options_from(plan),
                plan=plan,
                level=arguments.level,
                packet_options=packet,
                on_progress=progress,
            )
    if arguments.plot is not None:
        from torch_topoopt.launcher.simulate import compare_plot

        compare_plot.draw(comparison, arguments.plot)
    if arguments.json:
        console.print_json(figures(comparison, graph, cluster, arguments.level))
    else:
        _show(terminal, comparison, arguments.level)
    return OK


def _names(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return known
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise InputError(f"architectures: {text!r} is not a list of different names: a,b,c")
    return names


def figures(comparison: Comparison, graph: OpGraph, cluster: Cluster, level: str) -> dict[str, Any]:
    """The JSON output."""
    return {
        "model": graph.model,
        "level": level,
        "batch_size": graph.batch_size,
        "servers": cluster.servers,
        "degree": cluster.degree,
        "link_gbps": cluster.link_gbps,
        "ports": cluster.ports,
        "accelerator": cluster.accelerator,
        "accelerators_per_server": cluster.accelerators_per_server,
        "equal_cost_fat_tree_gbps": comparison.equal_cost_gbps,
        "architectures": [asdict(row) for row in comparison.rows],
        "impossible": comparison.impossible,
    }


def _show(terminal: Terminal, comparison: Comparison, level: str) -> None:
    columns = ["architecture", "rate", "iteration", "compute", "tax", "cost", "value", "strategy"]
    rows = [
        [
            row.architecture,
            format_gbps(round(row.server_gbps, 1)),
            format_seconds(row.iteration_s),
            format_seconds(row.compute_s),
            f"{row.bandwidth_tax:.2f}",
            "-" if row.cost is None else f"${row.cost / 1000:,.1f}k",
            "-"
            if row.iterations_per_s_per_mdollar is None
            else f"{row.iterations_per_s_per_mdollar:.4g}",
            row.strategy,
        ]
        for row in comparison.rows
    ]
    title = f"One training iteration on each architecture, at {level} level"
    terminal.table(title, columns, rows)
    for line in plan_tables.dark_ports_lines(comparison.plan.cluster, comparison.plan.network):
        terminal.line(f"note: topoopt: {line}")
    for name, why in comparison.impossible.items():
        terminal.line(f"note: not {name}: {why}")
