"""All architectures side by side: iteration time, cost, and what a dollar buys.

Every architecture gets the best of a few strategies, priced on it: the one that `planner.plan`
finds together with TopoOpt's network, the one that the same search finds on the ideal switch, and
those that every search starts from. Networks that are wired for a job are wired for each of them.
Where circuits move during the job, it is the ideal switch's strategy, which the search found
without knowing the network, as in the paper (section 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch_topoopt.architectures import ARCHITECTURES, architecture, fat_tree, topoopt
from torch_topoopt.comparison.cost import capital_cost, equal_cost_gbps
from torch_topoopt.comparison.estimate import ArchitectureEstimate, predict_architecture
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.options import DEFAULT_OPTIONS
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.strategies import starting_strategies
from torch_topoopt.search.traffic import demand
from torch_topoopt.search.two_levels import TwoLevelSearch
from torch_topoopt.sim import LEVELS
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.architectures import Build
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.chains import ChainProgress
    from torch_topoopt.search.strategies import Strategy


@dataclass(frozen=True)
class Compared:
    """One architecture. `server_gbps` is the most that a server can send; `cost` is in dollars
    (None: parts without a price), `iterations_per_s_per_mdollar` what a million of them buys."""

    architecture: str
    server_gbps: float
    iteration_s: float
    compute_s: float
    bandwidth_tax: float
    cost: float | None
    iterations_per_s_per_mdollar: float | None
    strategy: str


@dataclass(frozen=True)
class Comparison:
    """`rows` in the order asked for; `plan` is TopoOpt's. `equal_cost_gbps` is the rate of the
    fat-tree that costs as much as TopoOpt (degree x rate where the fat-tree is cheaper still; None
    where every fat-tree costs more).
    `impossible`: why there is no row for an architecture, where the cluster cannot be wired so."""

    rows: tuple[Compared, ...]
    plan: Plan
    equal_cost_gbps: float | None
    impossible: Mapping[str, str]

    def row(self, name: str) -> Compared:
        return next(row for row in self.rows if row.architecture == name)


def compare(
    op_graph: OpGraph,
    cluster: Cluster,
    names: Sequence[str] = tuple(ARCHITECTURES),
    *,
    options: PlanningOptions = DEFAULT_OPTIONS,
    plan: Plan | None = None,
    level: str = "flow",
    packet_options: Mapping[str, Any] = MappingProxyType({}),
    on_progress: Callable[[float | None, str], None] = lambda fraction, text: None,
) -> Comparison:
    """Prices `op_graph` on the named architectures with the servers, ports and rate of `cluster`.

    `plan` is TopoOpt's; where none is given, it is made as `options` say. The search on the ideal
    switch follows these, too: where they begin at one strategy, or there is nothing to search (data
    parallelism), no others are tried. The fat-tree gets the link rate at which it costs what
    TopoOpt with patch panels costs (paper sections 5.1 and 5.2). The same arguments give the same
    figures. `on_progress` is called between steps with the fraction done, and whatever it raises
    ends the comparison.

    At level "packet" every architecture is priced packet by packet, with `packet_options` and one
    shortest path for each flow; strategies are searched at flow level all the same.

    Raises ValueError for an unknown level, architecture or accelerator, a model that does not fit,
    or a cluster that none of the architectures can have.
    """
    price = _price_at(level, packet_options)
    builds = {name: architecture(name) for name in names}
    steps = len(names) + 2

    def report(done: float, what: str) -> None:
        on_progress(done / steps, what)

    if plan is None:
        plan = _planned(op_graph, cluster, options, report)
    candidates = _candidates(op_graph, cluster, options, plan, report)
    cost = capital_cost(topoopt.build(cluster, network=plan.network), cluster)
    assert cost is not None
    impossible: dict[str, str] = {}
    tree_gbps = None
    try:
        tree_gbps = _equal_cost(cluster, cost.total)
    except ValueError as error:
        if "fat-tree" in names:
            impossible["fat-tree"] = str(error)
            names = [name for name in names if name != "fat-tree"]
    builder = _ArchitectureBuilder(op_graph, cluster, plan, options, tree_gbps, builds)
    rows = []
    for i, name in enumerate(names):
        report(2 + i, name)
        row = _best_row(name, builder, candidates, price)
        if isinstance(row, Compared):
            rows.append(row)
        else:
            impossible[name] = row
    if not rows:
        raise ValueError(next(iter(impossible.values())))
    return Comparison(tuple(rows), plan, tree_gbps, impossible)


@dataclass(frozen=True)
class _Candidates:
    """Strategies to price, each with where it is from, and the one found on the ideal switch."""

    origins: Mapping[Strategy, str]
    of_switch: Strategy


@dataclass(frozen=True)
class _ArchitectureBuilder:
    """Makes an architecture for a strategy. `tree_gbps` is the rate of the fat-tree."""

    op_graph: OpGraph
    cluster: Cluster
    plan: Plan
    options: PlanningOptions
    tree_gbps: float | None
    builds: Mapping[str, Build]

    def build(self, name: str, strategy: Strategy) -> Topology:
        """Raises ValueError where the cluster cannot be wired so."""
        cluster, options = self.cluster, self.options
        if name == "fat-tree":
            assert self.tree_gbps is not None
            return fat_tree.build(cluster, server_gbps=self.tree_gbps)
        if name == "topoopt" and strategy == self.plan.strategy:
            return topoopt.build(cluster, network=self.plan.network)
        asked = demand(self.op_graph, strategy, cluster.servers)
        if name == "topoopt":
            network = find_network(
                cluster,
                asked,
                mode=options.mode,
                routing=options.routing,
                search=NetworkSearch(seed=options.seed),
            )
            return topoopt.build(cluster, network=network)
        return self.builds[name](cluster, asked, seed=options.seed)


def _price_at(level: str, packet_options: Mapping[str, Any]) -> Callable[..., ArchitectureEstimate]:
    """The function that prices a strategy on an architecture at `level`; ValueError for another."""
    if level not in LEVELS:
        raise ValueError(f"level: {level!r} is not one of {', '.join(LEVELS)}")
    options = packet_options if level == "packet" else {}
    return partial(predict_architecture, level=level, **options)


def _planned(
    op_graph: OpGraph,
    cluster: Cluster,
    options: PlanningOptions,
    report: Callable[[float, str], None],
) -> Plan:
    """TopoOpt's plan."""

    def show(now: planner.PlanProgress) -> None:
        done = (now.round - 1 + now.evaluations / max(1, now.budget)) / now.rounds
        report(min(done, 1.0), f"TopoOpt, round {now.round} of at most {now.rounds}")

    return planner.plan(op_graph, cluster, options, on_progress=show)


def _candidates(
    op_graph: OpGraph,
    cluster: Cluster,
    options: PlanningOptions,
    plan: Plan,
    report: Callable[[float, str], None],
) -> _Candidates:
    """TopoOpt's strategy, the best that is found on the ideal switch, and where searches start."""
    starts = _starts(op_graph, cluster, options, plan)
    switch = TwoLevelSearch(
        SearchProblem(
            op_graph,
            cluster,
            None,
            tuple(dict.fromkeys((plan.strategy, *starts))),
            dimensions=options.dimensions,
            micro_batches=plan.micro_batches,
            optimizer_factor=options.optimizer_factor,
        ),
        seed=options.seed,
        options=options.search,
    )
    budget = options.rounds * options.evaluations if len(starts) else 0

    def searched(now: ChainProgress) -> None:
        report(1 + now.evaluations / max(1, budget), "ideal switch")

    if budget:
        switch.run(budget, searched)
    origins = {plan.strategy: "topoopt"}
    origins.setdefault(switch.best(), "ideal-switch")
    for start in starts:
        origins.setdefault(start, "start")
    return _Candidates(origins, switch.best())


def _best_row(
    name: str,
    builder: _ArchitectureBuilder,
    candidates: _Candidates,
    price: Callable[..., ArchitectureEstimate],
) -> Compared | str:
    """The fastest of all candidates; or why the cluster cannot be wired for any."""
    op_graph, cluster = builder.op_graph, builder.cluster
    parts, seed = builder.plan.micro_batches, builder.options.seed
    best: Compared | None = None
    problem = ""
    for strategy, origin in candidates.origins.items():
        try:
            topology = builder.build(name, strategy)
        except ValueError as error:
            problem = str(error)
            continue
        if topology.reconfiguration is not None and strategy != candidates.of_switch:
            continue
        estimate = price(topology, op_graph, cluster, strategy, micro_batches=parts, seed=seed)
        if best is None or estimate.iteration_s < best.iteration_s:
            best = _row(name, topology, cluster, estimate, origin)
    return best or problem


def _starts(
    op_graph: OpGraph, cluster: Cluster, options: PlanningOptions, plan: Plan
) -> tuple[Strategy, ...]:
    """Strategies that are priced beside TopoOpt's, and where the ideal switch's search begins."""
    if options.strategy_space == "data-parallel":
        return ()
    if options.strategy is not None:
        return (options.strategy,)
    return starting_strategies(
        op_graph,
        cluster,
        micro_batches=plan.micro_batches,
        optimizer_factor=options.optimizer_factor,
    )


def _equal_cost(cluster: Cluster, budget: float) -> float:
    """The rate, in Gb/s, of the fat-tree that costs `budget` dollars; degree x link rate at most:
    more than the ideal switch it never gets. Raises ValueError where every fat-tree costs more."""
    most = cluster.degree * cluster.link_gbps
    cheapest = capital_cost(fat_tree.build(cluster, server_gbps=most), cluster)
    assert cheapest is not None
    return most if cheapest.total <= budget else equal_cost_gbps(cluster, budget)


def _sent_gbps(topology: Topology) -> list[float]:
    """The rate of each server."""
    rates = [0.0] * topology.servers
    for link in topology.links:
        if link.source < topology.servers:
            rates[link.source] += link.gbps
    return rates


def _row(
    name: str, topology: Topology, cluster: Cluster, estimate: ArchitectureEstimate, origin: str
) -> Compared:
    cost = capital_cost(topology, cluster)
    per_million = None if cost is None else 1e6 / (estimate.iteration_s * cost.total)
    return Compared(
        architecture=name,
        server_gbps=max(_sent_gbps(topology)),
        iteration_s=estimate.iteration_s,
        compute_s=estimate.compute_s,
        bandwidth_tax=estimate.bandwidth_tax,
        cost=None if cost is None else cost.total,
        iterations_per_s_per_mdollar=per_million,
        strategy=origin,
    )
