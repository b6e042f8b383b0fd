"""`topoopt topology`: links, rings and routes for a demand, and their predicted performance."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.plan import failure_tables, plan_tables, topology_collectives
from torch_topoopt.launcher.signals import Interrupted
from torch_topoopt.plan.codec import json_text
from torch_topoopt.plan.result_json import within
from torch_topoopt.plan.units import counted, format_bytes, format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Cluster, Demand, Network, Plan
    from torch_topoopt.topology.collectives.candidates import PricedCollective
    from torch_topoopt.topology.measures.figures import Figures

_MANY_SERVERS = 1000  # above which progress is printed

_DESCRIPTION = """\
Wires servers for a demand and says what the network is worth: which port is joined to which, the
rings of every AllReduce, how far servers are apart, and what the busiest link carries.

modes:
  best      searched: rings of any order, links where the demand needs them; --operations limits it
  paper     the paper's own algorithms: strides near a geometric sequence, matchings
  released  the rules of the paper's public artifact: all ports to strides, of another rule
  FILE.py:NAME  an algorithm of your own (docs/guides/extending.md)

Without --demand: one AllReduce of 1 GB over all servers, and 100 MB from each server to all others
evenly. A demand file is a JSON object:

  {"version": 1,
   "groups": [{"servers": [0, 1, 2, 3], "size_bytes": 1000000}],
   "pairs": [{"source": 0, "target": 3, "size_bytes": 5000}]}

groups: bytes that an iteration AllReduces among these servers. pairs: bytes that it sends from one
server to another; or, in place of the list, all-to-alls (size_bytes from each to each other) and
listed pairs: {"all_to_all": [{"servers": [0, 1, 2], "size_bytes": 4000}], "listed": []}.

Loads are bytes per iteration on one link. In mode best, AllReduces take the schedules that training
would; the least of their time and that of the pairs' bytes decides. Other modes count rings.

With --collective, a table compares the algorithms for one collective on these links: steps that
follow each other, time, and bytes on the busiest link, as if it had the rate of the slowest one.
No schedule is below the bound of the slowest cut: what the servers on one side must send, over the
links that leave them. The algorithm that TOPOOPT_ALGORITHM=auto takes is marked. --schedule writes
its steps, and --check-schedule replays them (docs/planning/collectives.md)."""

_EXAMPLES = """\
  topoopt topology --servers 12 --degree 4
  topoopt topology --servers 128 --degree 4 --ports simplex --mode paper --json
  topoopt topology --servers 16 --degree 4 --demand demand.json --plot network.png
  topoopt topology --servers 16 --degree 4 --failures
  topoopt topology --servers 16 --degree 4 --collective all_gather --bytes 1MB
  topoopt topology --links graph.json --collective all_reduce --bytes 64MB --schedule steps.json
  topoopt topology --check-schedule steps.json"""


@dataclass(frozen=True)
class FoundNetwork:
    """The result of `topoopt topology`."""

    JSON_FIELDS: ClassVar = (
        "cluster.servers", "cluster.degree", "duplex", "mode", "strides", "rings", "links",
        *within("figures", "mean_hops", "diameter", "moore_bound_hops", "max_link_load",
                "mean_link_load", "bandwidth_tax", "all_reduce_over_bound",
                "all_to_all_over_bound"),
        "seconds", "failures", *topology_collectives.PRICED,
    )  # fmt: skip
    OMIT_IF_NONE: ClassVar = ("failures", "collective", "bytes", "auto", "candidates")

    cluster: Cluster
    network: Network
    figures: Figures
    mode: str
    seconds: float
    plan: Plan | None  # the network with its failures
    collective: PricedCollective | None

    @property
    def duplex(self) -> bool:
        return self.cluster.ports == "duplex"

    @property
    def strides(self) -> tuple[int, ...] | None:
        from torch_topoopt.topology.measures.figures import strides_of

        return strides_of(self.cluster, self.network)

    def rings(self) -> list[tuple[int, ...]]:
        return [ring.servers for group in self.network.groups for ring in group.rings]

    def links(self) -> list[tuple[int, int, int, int, float]]:
        return [
            (*(k.source, k.target, k.source_port, k.target_port), self.cluster.gbps_of(k))
            for k in self.network.links
        ]

    def failures(self) -> failure_tables.FailureSummary | None:
        return None if self.plan is None else failure_tables.failure_summary(self.plan)


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("topology", _DESCRIPTION, _EXAMPLES)
    shared_options.add(options, "servers", "degree", "bandwidth", "ports", "parallel-links")
    options.add_argument("--simplex", action=parser.Renamed, now="--ports simplex")
    shared_options.add(
        options,
        "mode",
        choices=parser.NamesOrFile(("paper", "released", "best")),
        help="how the network is found, as described above (default: best)",
    )
    shared_options.add(options, "routing")
    options.add_argument("--demand", metavar="FILE", help="demand to wire for (see above)")
    shared_options.add(options, "seed")
    options.add_argument(
        "--operations",
        type=float,
        metavar="COUNT",
        help="mode best: elementary operations that the search may take, as 8e9; a core does some "
        "4e9 in a second, and routes are planned meanwhile (default: 6.25e7 for each server)",
    )
    options.add_argument("--budget", action=parser.Renamed, now="--operations (4e9 for a second)")
    topology_collectives.add_options(options)
    shared_options.add(options, "plot", "failures", "json")
    shared_options.add_verbosity(options)
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    options = make_parser()
    arguments = options.parse_args(argv)
    if (code := topology_collectives.run_alone(arguments, options)) is not None:
        return code
    cluster = _cluster(arguments)
    demand = _demand(arguments.demand, cluster)
    terminal = console.Terminal.of(arguments)
    from torch_topoopt.sim.demand_seconds import reduced_bytes
    from torch_topoopt.topology.measures.figures import figures_of

    if cluster.servers > _MANY_SERVERS and not arguments.json:
        terminal.line(
            f"{cluster.servers} servers: computing paths between all pairs of them takes a while"
        )
    stopped: Interrupted | None = None
    with terminal.progress("searching") as progress:
        progress(None, f"mode {arguments.mode}")
        network, seconds, stopped = _find(cluster, demand, arguments)
    reduced = reduced_bytes(cluster, network) if arguments.mode == "best" else None
    figures = figures_of(cluster, network, demand, reduced)
    if arguments.plot is not None:
        _plot(arguments.plot, cluster, network, figures, str(arguments.mode))
    plan = _with_failures(cluster, network, demand) if arguments.failures else None
    priced = topology_collectives.priced_on(cluster, network, arguments)
    found = FoundNetwork(cluster, network, figures, str(arguments.mode), seconds, plan, priced)
    if arguments.json:
        console.print_json(found, json_text)
    else:
        _show(terminal, found)
        if plan is not None:
            failure_tables.show_failures(terminal, plan)
        if priced is not None:
            topology_collectives.show(terminal, priced, arguments)
        if arguments.plot is not None:
            terminal.line(f"drawing: {arguments.plot}")
    if stopped is not None:
        console.warning(f"stopped by {stopped.signum.name}: this is the best network until then")
        sys.stdout.flush()
        os._exit(stopped.exit_code)  # the step of the search that was not waited for ends with us
    return OK


def _cluster(arguments: argparse.Namespace) -> Cluster:
    if arguments.servers is not None and arguments.servers < 2:
        raise InputError(f"servers: must be at least 2 (got {arguments.servers})")
    return shared_options.cluster_of(arguments)


def _demand(path: str | None, cluster: Cluster) -> Demand:
    from torch_topoopt.plan import DemandFile, validate_demand
    from torch_topoopt.topology.measures.figures import default_demand

    if path is None:
        return default_demand(cluster.servers)
    try:
        document = DemandFile.load(path)
    except OSError as error:
        raise InputError(f"demand: {path}: {error.strerror}") from None
    with input_errors(path):
        return validate_demand(cluster, document.demand())


def _find(
    cluster: Cluster, demand: Demand, arguments: argparse.Namespace
) -> tuple[Network, float, Interrupted | None]:
    """The network, the seconds of the search, and the signal that ended it, if any; the best
    network found by then is kept."""
    if arguments.operations is not None and arguments.mode != "best":
        raise InputError(
            f"operations: mode {arguments.mode} does not search; leave --operations out"
        )
    from torch_topoopt.sim.demand_seconds import fastest_for
    from torch_topoopt.topology.best.network_search import NetworkSearch
    from torch_topoopt.topology.best.ring_unions import WORK_PER_S
    from torch_topoopt.topology.find_network import find_network

    if arguments.operations is not None and not 1 <= arguments.operations < math.inf:
        raise InputError(f"operations: {arguments.operations:g} is not a number from 1 on")
    best: Network | None = None

    def keep(network: Network) -> None:
        nonlocal best
        best = network

    budget_s = None if arguments.operations is None else arguments.operations / WORK_PER_S
    on_better = keep if arguments.mode == "best" else None
    search = NetworkSearch(seed=arguments.seed, budget_s=budget_s, on_better=on_better)
    search = fastest_for(arguments.mode, cluster, demand, search)
    started = time.perf_counter()
    stopped = None
    try:
        network = _beside(
            lambda: find_network(
                cluster,
                demand,
                mode=arguments.mode,
                routing=arguments.routing,
                search=search,
            )
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    except Interrupted as interrupted:
        if best is None:
            raise
        network, stopped = best, interrupted
    return network, time.perf_counter() - started, stopped


def _beside(find: Callable[[], Network]) -> Network:
    """The result of `find`, which runs in another thread, so that this one can handle signals: a
    step of a search does not check for them."""
    outcome: list[Network | BaseException] = []

    def run() -> None:
        try:
            outcome.append(find())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def _with_failures(cluster: Cluster, network: Network, demand: Demand) -> Plan:
    """The network as a plan with recovery from any one loss."""
    from torch_topoopt.plan import Plan

    plan = Plan.of_network(cluster, network, demand, model="")
    return documents.with_failures(plan, lambda _share, _text: None, asked=True)


def _show(terminal: Terminal, found: FoundNetwork) -> None:
    cluster, network, figures, strides = found.cluster, found.network, found.figures, found.strides
    links = len(network.links)
    cables = f" ({counted(links // 2, 'cable')})" if found.duplex else ""
    terminal.table(
        f"{counted(cluster.servers, 'server')}, {counted(cluster.degree, cluster.ports + ' port')} "
        f"each, mode {found.mode}",
        ("figure", "value"),
        [
            ("links", f"{links}{cables} of {format_gbps(cluster.link_gbps)}"),
            ("strides", "not circulant" if strides is None else ", ".join(map(str, strides))),
            ("mean hops", f"{figures.mean_hops:.4g}"),
            ("least possible (Moore bound)", f"{figures.moore_bound_hops:.4g}"),
            ("diameter", str(figures.diameter)),
            ("busiest link, per iteration", format_bytes(figures.max_link_load)),
            ("mean link, per iteration", format_bytes(figures.mean_link_load)),
            ("bandwidth tax", f"{figures.bandwidth_tax:.4g}"),
            (
                "AllReduce, slowdown against the bandwidth bound",
                f"{figures.all_reduce_over_bound:.2f}x",
            ),
            (
                "all-to-all, slowdown against the bandwidth bound",
                f"{figures.all_to_all_over_bound:.2f}x",
            ),
            ("found in", format_seconds(found.seconds)),
        ],
    )
    for line in plan_tables.dark_ports_lines(cluster, network):
        terminal.line(line)
    for group in network.groups:
        orders = [_order(ring.servers) for ring in group.rings]
        terminal.line(f"group of {counted(len(group.servers), 'server')}: {len(orders)} rings")
        for order in orders:
            terminal.line(f"  {order}")


def _order(servers: tuple[int, ...]) -> str:
    """A ring's servers; of a long one the first few."""
    shown = servers if len(servers) <= 16 else servers[:12]
    rest = f" → ... {len(servers) - len(shown)} more" if len(shown) < len(servers) else ""
    return " → ".join(map(str, shown)) + rest


def _plot(path: str, cluster: Cluster, network: Network, figures: Figures, mode: str) -> None:
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"plot: {path} does not end in .png, .svg or .pdf")
    from torch_topoopt.launcher.plan.topology_drawing import draw

    title = (
        f"{counted(cluster.servers, 'server')}, degree {cluster.degree} {cluster.ports}, {mode}: "
        f"{figures.mean_hops:.3g} hops, diameter {figures.diameter}"
    )
    try:
        draw(path, cluster, network, title)
    except OSError as error:
        raise InputError(f"plot: {path}: {error.strerror}") from None
