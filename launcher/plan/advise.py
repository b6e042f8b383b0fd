"""`topoopt advise`: how to cable servers, the resulting speed, and alternatives."""

from __future__ import annotations

import argparse
import ipaddress
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, documents, parser, price_lists, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.plan import advise_output
from torch_topoopt.launcher.plan.advise_output import Advice

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.comparison.cabling.advice import CablingOption
    from torch_topoopt.comparison.cabling.sheets import Names
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network, Plan

_SIZES = "1MB,64MB,1GB"

_DESCRIPTION = """\
Says how to plug cables between servers that have no switch: which port of which server into which,
with a drawing; what that gives (AllReduce and all-to-all, or an iteration of --model), what one
more port or a switch would change and cost, and whether the loss of one cable cuts off a server.

With -o DIR it also writes what you need at the rack: cabling.svg, cabling.html to print (drawing,
list, a label for each end of each cable), cables.csv, labels.csv, the cluster.yaml for
`topoopt run --cluster` and the plan.json of rings and routes.

Times are what the links allow: bytes of the busiest link over its rate, and the signal's latency;
sizes are the whole buffer of a server. Costs are by one of two price
lists (--prices): the TopoOpt paper's (NICs, transceivers, switch ports, fibre) or the HammingMesh
paper's (cables and switch ports alone); --json has both."""

_EXAMPLES = """\
  topoopt advise --servers 6 --degree 2 --bandwidth 200Gbps
  topoopt advise --servers 4 --degree 3 --bandwidth 100Gbps -o cabling    # a full mesh
  topoopt advise --servers 3 --degree 2 --bandwidth 200Gbps --names spark0 spark1 spark2 \\
      --interfaces enp1s0f0np0 enp1s0f1np1 -o cabling
  topoopt advise --servers 16 --degree 4 --bandwidth 100Gbps --model bert --json"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("advise", _DESCRIPTION, _EXAMPLES)
    shared_options.add(options, "servers")
    shared_options.add(options, "degree", help="ports of each server that take cables")
    shared_options.add(
        options, "bandwidth", help="port rate in each direction, such as 200Gbps or 40Gbps"
    )
    options.add_argument("--ports", action=parser.Alias, now="--degree", type=int)
    options.add_argument("--speed", action=parser.Alias, now="--bandwidth", type=parser.rate)
    options.add_argument(
        "--model",
        metavar="MODEL",
        help="wire for this model (as `topoopt plan` takes it) and show its iterations",
    )
    shared_options.add(options, "accelerator", "batch-size", "evaluations", "mode", "seed")
    options.add_argument(
        "--sizes",
        type=_sizes,
        default=_SIZES,
        metavar="BYTES,...",
        help=f"sizes of the collectives that are timed (default: {_SIZES})",
    )
    _add_rack_options(options)
    shared_options.add(options, "prices", "json")
    shared_options.add_verbosity(options)
    return options


def _add_rack_options(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--names", nargs="+", metavar="NAME", help="names of the servers (default: box0, box1, ...)"
    )
    options.add_argument(
        "--interfaces",
        nargs="+",
        metavar="NAME",
        help="interface names of the ports on every server, as in `ip link`, in the order p0, "
        "p1, ...",
    )
    options.add_argument(
        "--subnet",
        type=_subnet,
        default="10.201.0.0/16",
        metavar="ADDRESS/LENGTH",
        help="network of the cables' addresses, a /30 for each (default: 10.201.0.0/16)",
    )
    options.add_argument(
        "-o",
        "--output",
        type=shared_options.output_folder,
        metavar="DIR",
        help="write all files to this folder",
    )


def _sizes(text: str) -> tuple[float, ...]:
    from torch_topoopt.plan.units import parse_bytes

    try:
        found = tuple(parse_bytes(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"sizes: {error}") from None
    if not all(size > 0 for size in found):
        raise argparse.ArgumentTypeError(f"sizes: {text} has one that is not above 0")
    return found


def _subnet(text: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"subnet: {text!r} is not a network, as 10.201.0.0/16: {error}"
        ) from None


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    cluster = _cluster(arguments)
    names = _names(arguments, cluster)
    terminal = console.Terminal.of(arguments)
    with terminal.progress("advise") as progress:
        advice = _advise(arguments, cluster, names, progress)
    if arguments.output:
        written = _write(advice, Path(arguments.output))
        advice = replace(advice, output=arguments.output, files=written)
    if arguments.json:
        console.print_json(advice)
        return OK
    advise_output.show(terminal, advice, price_lists.LISTS[arguments.prices])
    _next_commands(terminal, arguments, cluster.servers)
    return OK


def _cluster(arguments: argparse.Namespace) -> Cluster:
    for name, example in (("servers", "6"), ("degree", "2"), ("bandwidth", "200Gbps")):
        if getattr(arguments, name) is None:
            raise InputError(f"{name}: missing; say for example --{name} {example}")
    from torch_topoopt.comparison.cabling.advice import cluster_for

    accelerator = arguments.accelerator or shared_options.DEFAULT_ACCELERATOR
    parser.check_accelerator(accelerator)
    with input_errors():
        return cluster_for(arguments.servers, arguments.degree, arguments.bandwidth, accelerator)


def _names(arguments: argparse.Namespace, cluster: Cluster) -> Names:
    from torch_topoopt.comparison.cabling.sheets import Names

    names = arguments.names or [f"box{number}" for number in range(cluster.servers)]
    for option, given, wanted in (
        ("names", names, cluster.servers),
        ("interfaces", arguments.interfaces, cluster.degree),
    ):
        if given is not None and len(given) != wanted:
            of = "servers" if option == "names" else "ports of a server"
            raise InputError(f"{option}: {len(given)} for {wanted} {of}; name each")
        if given is not None and len(set(given)) != len(given):
            twice = next(name for name in given if given.count(name) > 1)
            raise InputError(f"{option}: duplicate name {twice!r}")
    return Names(tuple(names), tuple(arguments.interfaces or ()))


def _advise(
    arguments: argparse.Namespace,
    cluster: Cluster,
    names: Names,
    progress: Callable[[float | None, str], None],
) -> Advice:
    from torch_topoopt.comparison.cabling.advice import disconnecting_pairs
    from torch_topoopt.comparison.cabling.sheets import cables_of
    from torch_topoopt.launcher.plan.failure_tables import failure_summary

    graph = None
    if arguments.model is not None:
        progress(None, f"profiling {arguments.model}")
        graph = documents.op_graph_of(
            arguments.model, arguments.batch_size, accelerators=cluster.servers
        )
        cluster = documents.in_format_of(cluster, graph)
    elif arguments.batch_size is not None or arguments.evaluations is not None:
        raise InputError("batch-size, evaluations: these are of a model; name one with --model")
    progress(None, "wiring")
    plan = _plan(arguments, cluster, graph, progress)
    with input_errors():
        cables = cables_of(cluster, plan.network, names, arguments.subnet)
    bridges = set(disconnecting_pairs(cluster.servers, plan.network))
    plan = documents.with_failures(plan, progress)
    return Advice(
        cluster,
        plan,
        names,
        cables,
        _alternatives(arguments, cluster, graph, plan, progress),
        arguments.sizes,
        tuple(cable.label for cable in cables if cable.servers in bridges),
        failure_summary(plan).links,
    )


def _plan(
    arguments: argparse.Namespace,
    cluster: Cluster,
    graph: OpGraph | None,
    progress: Callable[[float | None, str], None],
) -> Plan:
    """The plan of the model; without one, for training in general, without a prediction."""
    from torch_topoopt.comparison.cabling.advice import wire
    from torch_topoopt.plan import Plan
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.topology.best.network_search import NetworkSearch
    from torch_topoopt.topology.measures.figures import default_demand

    if graph is not None:
        options = PlanningOptions(
            seed=arguments.seed, evaluations=arguments.evaluations, mode=arguments.mode
        )
        return documents.make_plan(graph, cluster, options, progress)
    with input_errors():
        network: Network = wire(cluster, arguments.mode, NetworkSearch(seed=arguments.seed))
    plan = Plan.of_network(
        cluster, network, default_demand(cluster.servers), model="", mode=str(arguments.mode)
    )
    return replace(plan, seed=arguments.seed)


def _alternatives(
    arguments: argparse.Namespace,
    cluster: Cluster,
    graph: OpGraph | None,
    plan: Plan,
    progress: Callable[[float | None, str], None],
) -> tuple[CablingOption, ...]:
    """The requested wiring, one port more, and switches with all ports and with one of each."""
    from torch_topoopt.comparison.cabling.advice import cluster_for, on_cables, on_switch

    sizes = arguments.sizes
    more = cluster_for(cluster.servers, cluster.degree + 1, cluster.link_gbps, cluster.accelerator)
    progress(None, f"with {more.degree} ports")
    other = _plan(arguments, more, graph, progress)
    job = None if graph is None else (graph, plan.strategy, plan.micro_batches)
    with_model = graph is not None
    with input_errors():
        return (
            on_cables(cluster, plan.network, sizes, plan if with_model else None),
            on_cables(more, other.network, sizes, other if with_model else None),
            *(on_switch(cluster, ports, sizes, job) for ports in sorted({1, cluster.degree})),
        )


def _write(advice: Advice, folder: Path) -> list[str]:
    """All files; raises InputError where the folder cannot be written."""
    from torch_topoopt.comparison.cabling import sheets
    from torch_topoopt.comparison.cabling.drawing import draw_svg
    from torch_topoopt.comparison.cabling.page import page_of
    from torch_topoopt.plan.codec import write_text_atomically

    title = advise_output.title(advice)
    svg = draw_svg(advice.names.servers, advice.cables, title)
    cluster = sheets.cluster_file(advice.cluster, advice.cables, advice.names, "cabling")
    texts = {
        "cabling.svg": svg,
        "cabling.html": page_of(title, advise_output.facts(advice), svg, advice.cables),
        "cables.csv": sheets.cables_csv(advice.cables),
        "labels.csv": sheets.labels_csv(advice.cables),
        "cluster.yaml": cluster.to_yaml(),
        "plan.json": advice.plan.to_json(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_text_atomically(folder / name, text)
    except OSError as error:
        raise InputError(f"output: {folder}: {error.strerror}") from None
    return list(texts)


def _next_commands(terminal: console.Terminal, arguments: argparse.Namespace, servers: int) -> None:
    if arguments.output is None:
        terminal.line(
            "with -o DIR: drawing, labels to print, and the cluster file for `topoopt run`"
        )
        return
    folder = Path(arguments.output)
    file = shlex.quote(str(folder / "cluster.yaml"))
    terminal.line(f"to print: {folder / 'cabling.html'}; the cluster file: {file}")
    terminal.line("when the cables are plugged:")
    terminal.line(f"  topoopt doctor --cluster {file}")
    terminal.line(f"  topoopt run --cluster {file} --nnodes {servers} train.py    # on each server")
