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
    from torch_topoopt.launcher.price_lists import PriceList
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
  cost        by the price list of --prices: all network parts with NICs (topoopt: that paper's
              Table 2), or cables and switch ports (hammingmesh: that paper's section III-C)
  iterations/s per M$   iterations per second for a million dollars by that list
  strategy    where it was found: own, on this architecture or an ideal switch of its rate; topoopt,
              by the planner; ideal-switch; start, where a search begins; placed, planned together
              with the order of servers on the rows and columns of a HammingMesh
Rows are in the order of --architectures, without it the fastest first.

--same-time NAME says which is the cheaper way to the same iteration time: the least bandwidth with
which each architecture is as fast as NAME is at --bandwidth, and what it costs then. --json has the
costs by both lists."""

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
    shared_options.add(options, "plot", "prices", "json")
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
    planning.check_counts(choice, cluster)
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
        _show(terminal, comparison, arguments)
        if same is not None:
            _show_same_time(terminal, same, price_lists.LISTS[arguments.prices])
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


_LEGEND = (
    "tax: bytes that servers send, forwarded ones included, over the bytes that they have to send",
    "strategy: own: found on this architecture or on an ideal switch of its rate; topoopt: found "
    "by the planner; see `topoopt compare --help` for the others",
)


def _dollars(cost: float | None) -> str:
    return "-" if cost is None else f"${cost / 1000:,.1f}k"


def _rate_per_mdollar(row: Compared, prices: PriceList) -> str:
    cost = prices.cost(row)
    if cost is None:
        return "-"
    value = 1e6 / (row.iteration_s * cost)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _show_same_time(terminal: Terminal, same: SameTimes, prices: PriceList) -> None:
    time = format_seconds(same.target_s)
    rows = [
        [
            row.architecture,
            "-" if row.server_gbps is None else format_gbps(round(row.server_gbps, 1)),
            "not reached" if row.iteration_s is None else format_seconds(row.iteration_s),
            _dollars(prices.cost(row)),
        ]
        for row in same.rows
    ]
    title = f"The least bandwidth for an iteration of {time}, as {same.reference} takes"
    terminal.table(title, ["architecture", "rate", "iteration", prices.heading], rows)
    if (cheapest := same.cheapest(prices.field)) is not None:
        cost = next(prices.cost(row) for row in same.rows if row.architecture == cheapest)
        terminal.line(f"cheapest for {time}, {prices.name}: {cheapest}, {_dollars(cost)}")


def _show(terminal: Terminal, comparison: Comparison, arguments: argparse.Namespace) -> None:
    prices = price_lists.LISTS[arguments.prices]
    shown = comparison.rows
    if arguments.architectures is None:
        shown = tuple(sorted(shown, key=lambda row: row.iteration_s))
    columns = ["architecture", "rate", "iteration", "compute", "tax", prices.heading]
    columns += ["iterations/s per M$", "strategy"]
    rows = [
        [
            row.architecture,
            format_gbps(round(row.server_gbps, 1)),
            format_seconds(row.iteration_s),
            format_seconds(row.compute_s),
            f"{row.bandwidth_tax:.2f}",
            _dollars(prices.cost(row)),
            _rate_per_mdollar(row, prices),
            row.strategy,
        ]
        for row in shown
    ]
    title = f"One training iteration on each architecture, at {arguments.level} level"
    terminal.table(title, columns, rows)
    layouts: dict[str, list[str]] = {}
    for row in shown:
        if row.layout is not None:
            layouts.setdefault(str(row.layout), []).append(row.architecture)
    for layout, architectures in layouts.items():
        terminal.line(f"layout of {', '.join(architectures)}: {layout}")
    for line in (prices.legend, *_LEGEND):
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
