"""`topoopt compare`: a model on every architecture: time, cost and bandwidth tax."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.launcher import (
    console,
    documents,
    packet_options,
    parser,
    price_lists,
    shared_options,
)
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.plan import plan_tables, planning
from torch_topoopt.plan.result_json import within
from torch_topoopt.plan.units import format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from torch_topoopt.comparison.compare import Compared, Comparison
    from torch_topoopt.comparison.same_time import SameTimes
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner.mesh.grid_plan import GridPlan

_DESCRIPTION = """\
Simulates one training iteration of a model on many kinds of network for the same servers: TopoOpt,
an ideal switch, a fat-tree of the same cost as TopoOpt, expanders, tori and others. Each gets the
best of the strategies that are found on it, for TopoOpt and on the ideal switch, and of those that
every search starts from. Where TopoOpt's plan has a layout, each gets the fastest layout on it.
MODEL is the name of a shipped model, file.py:callable, a script or an opgraph.json.

columns:
  rate        what a server can send
  tax         bytes that servers send (forwarded ones included) over those that they have to send
  cost        TopoOpt prices: all network parts, NICs included (TopoOpt paper, Table 2);
              HammingMesh prices: cables and switch ports, without NICs (its paper, section III-C)
  iterations/s per M$   iterations per second for a million dollars at TopoOpt prices
  strategy    where it was found: own, on this architecture or an ideal switch of its rate; topoopt,
              by the planner; ideal-switch; start, where a search begins; placed, planned together
              with the order of servers on the rows and columns of a HammingMesh
Rows are in the order of --architectures, without it the fastest first.

--same-time NAME says which is the cheaper way to the same iteration time: the least bandwidth with
which each architecture is as fast as NAME is at --bandwidth, and what it costs then, by both lists
of prices."""

_EXAMPLES = """\
  topoopt compare dlrm --servers 128 --degree 4 --bandwidth 100Gbps
  topoopt compare vgg --servers 16 --degree 4 --bandwidth 25Gbps --architectures topoopt,fat-tree
  topoopt compare vgg --servers 16 --degree 4 --bandwidth 25Gbps --architectures topoopt,hx2mesh \\
      --same-time topoopt
  topoopt compare vgg --servers 16 --degree 4 --bandwidth 25Gbps --level packet --transport dctcp
  topoopt compare opgraph.json --servers 64 --degree 6 --bandwidth 100Gbps --plot compare.png"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("compare", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "model", metavar="MODEL", help="name, file.py:callable, script.py or *.json"
    )
    options.add_argument(
        "--architectures",
        metavar="NAME,...",
        help="which, in this order (default: all, the fastest first)",
    )
    options.add_argument(
        "--same-time",
        metavar="NAME",
        help="also what each costs at the bandwidth with which it is as fast as NAME is here",
    )
    searched = ("rounds", "evaluations")
    shared_options.add(options, *(n for n in shared_options.PLANNING if n not in searched))
    shared_options.add(options, *shared_options.TEXT, "no-memory-limit")
    most = "most rounds of the alternation (default: %(default)s)"
    shared_options.add(options, "rounds", default=2, help=most)
    few = "strategies tried in each round (default: %(default)s)"
    shared_options.add(options, "evaluations", default=5000, help=few)
    packet_options.add_level(options)
    packet_options.add_options(options, seed=False)
    shared_options.add(options, "plot", "json")
    shared_options.add_verbosity(options)
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    packet = packet_options.given_options(arguments, seed=False)
    layouts = arguments.level == "flow" and arguments.same_time is None
    choice = planning.PlanningChoice.of(
        arguments, arguments.model, layout_spaces=("all", "layouts") if layouts else ()
    )
    cluster = shared_options.cluster_of(
        arguments, arguments.accelerator or shared_options.DEFAULT_ACCELERATOR
    )
    planning.check_stages(choice, cluster)
    from torch_topoopt.architectures import ARCHITECTURES, architecture

    names = _names(arguments.architectures, tuple(ARCHITECTURES))
    _check_same_time(arguments, names)
    terminal = console.Terminal.of(arguments)
    with terminal.progress(f"comparing {arguments.model}") as progress:
        progress(None, "profiling")
        with input_errors():
            for name in names:
                architecture(name)
            graph = choice.op_graph(arguments.model, cluster)
            cluster = documents.in_format_of(cluster, graph)
            terminal.note(
                planning.assumptions(cluster, choice.space, graph.model, graph.batch_size)
            )
            for line in planning.whole_model_lines(graph):
                terminal.note(line)
            comparison, same = _compared(arguments, choice, graph, cluster, packet, progress)
    if arguments.plot is not None:
        from torch_topoopt.launcher.simulate import compare_plot

        compare_plot.draw(comparison, arguments.plot)
    if arguments.json:
        console.print_json(ComparedModel(comparison, graph, cluster, arguments.level, same))
    else:
        _show(terminal, comparison, arguments.level, by_time=arguments.architectures is None)
        if same is not None:
            _show_same_time(terminal, same)
    return OK


# parameters: the parsed options, and the objects made from them
def _compared(
    arguments: argparse.Namespace,
    choice: planning.PlanningChoice,
    graph: OpGraph,
    cluster: Cluster,
    packet: dict[str, Any],
    progress: Callable[[float | None, str], None],
) -> tuple[Comparison, SameTimes | None]:
    from torch_topoopt.architectures import ARCHITECTURES
    from torch_topoopt.comparison.compare import compare, planned_again
    from torch_topoopt.comparison.same_time import same_times

    plan = choice.plan(graph, cluster, progress)
    options = choice.options_from(plan)
    if plan.layout is None and options.strategy_space == "all":
        options = replace(options, strategy_space="full")
    comparison = compare(
        graph,
        cluster,
        _names(arguments.architectures, tuple(ARCHITECTURES)),
        options=options,
        plan=plan,
        level=arguments.level,
        packet_options=packet,
        schedules=packet_options.uses_schedules(arguments),
        on_progress=progress,
    )
    if arguments.same_time is None:
        return comparison, None
    same = same_times(
        *(comparison, graph, cluster, arguments.same_time),
        seed=options.seed,
        plan_again=partial(planned_again, comparison, graph, cluster, options=options),
        on_progress=progress,
    )
    return comparison, same


def _check_same_time(arguments: argparse.Namespace, names: tuple[str, ...]) -> None:
    if arguments.same_time is None:
        return
    if arguments.same_time not in names:
        raise InputError(
            f"same-time: {arguments.same_time!r} is not compared; it is one of {', '.join(names)}"
        )
    if arguments.level != "flow":
        raise InputError("same-time: --same-time is for --level flow")


def _names(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return known
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise InputError(f"architectures: {text!r} is not a list of different names: a,b,c")
    return names


@dataclass(frozen=True)
class ComparedModel:
    """The result of `topoopt compare`."""

    JSON_FIELDS: ClassVar = (
        "graph.model", "level", "graph.batch_size",
        *within("cluster", *plan_tables.CLUSTER_FIGURES),
        *within("comparison", "equal_cost_fat_tree_gbps=equal_cost_gbps", "architectures=rows",
                "impossible", "placements=grid_plans"),
        "same_time",
    )  # fmt: skip
    OMIT_IF_NONE: ClassVar = ("same_time",)

    comparison: Comparison
    graph: OpGraph
    cluster: Cluster
    level: str
    same_time: SameTimes | None = None


# The price lists by the field of a cost.
_PRICE_LISTS = {
    "cost": "TopoOpt's prices (Table 2)",
    "cable_cost": "HammingMesh's prices (III-C)",
}
_COSTS = (f"cost, {price_lists.TOPOOPT}", f"cost, {price_lists.HAMMINGMESH}")
_LEGEND = (
    "tax: bytes that servers send, forwarded ones included, over the bytes that they have to send",
    "strategy: own: found on this architecture or on an ideal switch of its rate; topoopt: found "
    "by the planner; see `topoopt compare --help` for the others",
)


def _dollars(cost: float | None) -> str:
    return "-" if cost is None else f"${cost / 1000:,.1f}k"


def _rate_per_mdollar(row: Compared) -> str:
    value = row.iterations_per_s_per_mdollar
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _show_same_time(terminal: Terminal, same: SameTimes) -> None:
    time = format_seconds(same.target_s)
    rows = [
        [
            row.architecture,
            "-" if row.server_gbps is None else format_gbps(round(row.server_gbps, 1)),
            "not reached" if row.iteration_s is None else format_seconds(row.iteration_s),
            _dollars(row.cost),
            _dollars(row.cable_cost),
        ]
        for row in same.rows
    ]
    title = f"The least bandwidth for an iteration of {time}, as {same.reference} takes"
    terminal.table(title, ["architecture", "rate", "iteration", *_COSTS], rows)
    for name, prices in _PRICE_LISTS.items():
        if (cheapest := same.cheapest(name)) is not None:
            cost = next(getattr(r, name) for r in same.rows if r.architecture == cheapest)
            terminal.line(f"cheapest for {time} by {prices}: {cheapest}, {_dollars(cost)}")


def _show(terminal: Terminal, comparison: Comparison, level: str, *, by_time: bool) -> None:
    shown = comparison.rows
    if by_time:
        shown = tuple(sorted(shown, key=lambda row: row.iteration_s))
    columns = ["architecture", "rate", "iteration", "compute", "tax", *_COSTS]
    columns += ["iterations/s per M$", "strategy"]
    rows = [
        [
            row.architecture,
            format_gbps(round(row.server_gbps, 1)),
            format_seconds(row.iteration_s),
            format_seconds(row.compute_s),
            f"{row.bandwidth_tax:.2f}",
            _dollars(row.cost),
            _dollars(row.cable_cost),
            _rate_per_mdollar(row),
            row.strategy,
        ]
        for row in shown
    ]
    title = f"One training iteration on each architecture, at {level} level"
    terminal.table(title, columns, rows)
    layouts: dict[str, list[str]] = {}
    for row in shown:
        if row.layout is not None:
            layouts.setdefault(str(row.layout), []).append(row.architecture)
    for layout, architectures in layouts.items():
        terminal.line(f"layout of {', '.join(architectures)}: {layout}")
    for line in (*price_lists.LEGEND, *_LEGEND):
        terminal.line(line)
    for line in plan_tables.dark_ports_lines(comparison.plan.cluster, comparison.plan.network):
        terminal.note(f"note: topoopt: {line}")
    for name, found in comparison.grid_plans.items():
        terminal.note(f"note: {name}: {_order(found)}")
    for name, why in comparison.impossible.items():
        terminal.note(f"note: not {name}: {why}")


def _order(found: GridPlan) -> str:
    """The gain from the order of the servers on the rows and columns of a grid."""
    if found.placed.order == found.naive.order:
        return "no order of the servers is faster than that of their numbers"
    without = format_seconds(found.naive.iteration_s)
    return f"with the servers in the order of their numbers, an iteration takes {without}"
