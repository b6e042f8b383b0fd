"""`topoopt compare`: a model on every architecture: time, cost and bandwidth tax."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import console, documents, packet_options, parser
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.launcher.units import format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.comparison import Comparison
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster

_DESCRIPTION = """\
Simulates one training iteration of a model on many kinds of network for the same servers: TopoOpt,
an ideal switch, a fat-tree of the same cost as TopoOpt, expanders, tori and others. Each gets the
best of the strategies found for TopoOpt and for the ideal switch and of those that every search
starts from. MODEL is the name of a shipped model, file.py:callable, a script or an opgraph.json.

columns: rate, what a server can send; tax, bytes that servers send (forwarded ones included) over
those that they have to send; cost, of all network parts (TopoOpt paper, Table 2); value, iterations
per second that a million dollars buys."""

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
    options.add_argument("--servers", type=int, required=True, help="number of servers")
    options.add_argument("--degree", type=int, required=True, help="ports of each server")
    options.add_argument(
        "--bandwidth",
        type=parser.rate,
        required=True,
        metavar="RATE",
        help="of a port, per direction, with its unit: 100Gbps",
    )
    options.add_argument(
        "--architectures", metavar="NAME,...", help="which, in this order (default: all)"
    )
    options.add_argument(
        "--accelerator",
        default="a100",
        help="device or device:format, as h100 or a100:bf16 (default: a100)",
    )
    options.add_argument(
        "--accelerators-per-server", type=int, default=4, metavar="N", help="default: 4"
    )
    options.add_argument(
        "--rounds", type=int, default=2, help="most rounds of TopoOpt's alternation (default: 2)"
    )
    options.add_argument(
        "--evaluations", type=int, default=5000, help="strategies tried per round (default: 5000)"
    )
    options.add_argument("--seed", type=int, default=0, help="same seed, same figures (default: 0)")
    parser.add_batch_size_option(options, shared=True)
    parser.add_costs_option(options)
    options.add_argument(
        "--level",
        default="flow",
        help="flow: links shared max-min fairly (default); packet: every packet, one path a flow",
    )
    packet_options.add_options(options, seed=False)
    options.add_argument("--plot", metavar="FILE", help="also draw it: .png, .pdf or .svg")
    parser.add_json_option(options)
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    from torch_topoopt.architectures import ARCHITECTURES, architecture
    from torch_topoopt.comparison import compare

    arguments = make_parser().parse_args(argv)
    packet = packet_options.given_options(arguments, seed=False)
    names = _names(arguments.architectures, tuple(ARCHITECTURES))
    if arguments.plot is not None:
        from torch_topoopt.launcher import compare_plot

        compare_plot.check_name(arguments.plot)
    cluster = parser.make_cluster(
        arguments.servers,
        arguments.degree,
        arguments.bandwidth,
        "duplex",
        arguments.accelerator,
        arguments.accelerators_per_server,
    )
    terminal = console.Terminal(json_output=arguments.json)
    with terminal.progress(f"comparing {arguments.model}") as progress:
        progress(None, "profiling")
        try:
            for name in names:
                architecture(name)
            graph = documents.op_graph_of(
                arguments.model,
                arguments.batch_size,
                accelerators=cluster.servers * cluster.accelerators_per_server,
                costs=arguments.costs,
            )
            comparison = compare(
                graph,
                cluster,
                names,
                seed=arguments.seed,
                rounds=arguments.rounds,
                evaluations=arguments.evaluations,
                level=arguments.level,
                packet_options=packet,
                on_progress=progress,
            )
        except ValueError as error:
            raise InputError(str(error)) from None
    if arguments.plot is not None:
        compare_plot.draw(comparison, arguments.plot)
    if arguments.json:
        console.print_json(figures(comparison, graph, cluster))
    else:
        _show(terminal, comparison, graph, cluster)
    return OK


def _names(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return known
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise InputError(f"architectures: {text!r} is not a list of different names: a,b,c")
    return names


def figures(comparison: Comparison, graph: OpGraph, cluster: Cluster) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "model": graph.model,
        "batch_size": graph.batch_size,
        "servers": cluster.servers,
        "degree": cluster.degree,
        "link_gbps": cluster.link_gbps,
        "equal_cost_fat_tree_gbps": comparison.equal_cost_gbps,
        "architectures": [asdict(row) for row in comparison.rows],
    }


def _show(terminal: Terminal, comparison: Comparison, graph: OpGraph, cluster: Cluster) -> None:
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
    title = (
        f"{graph.model}, {graph.batch_size} samples, {cluster.servers} servers with "
        f"{cluster.degree} x {format_gbps(cluster.link_gbps)}"
    )
    terminal.table(title, columns, rows)
