"""All architectures side by side: iteration time, cost, and performance per dollar.

Each static architecture is priced with the best strategy found by searching on it or on the ideal
switch (`own_search`). Each strategy is also a candidate at every higher rate, so more bandwidth
never makes an architecture slower. The ideal switch has all these strategies as candidates.
`planner.plan` finds a strategy together with TopoOpt's network, so it applies to one rate, and to
networks that are wired for a job: these are wired for it, and for a few others. On rows and columns
of switches (HammingMesh), strategy and placement are planned together (`planner.mesh`). Where
circuits move during the job, the strategy is the ideal switch's, found without knowledge of the
network as in the paper (section 5.1), and without layers in runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.architectures import (
    ARCHITECTURES,
    architecture,
    fat_tree,
    ideal_switch,
    topoopt,
)
from torch_topoopt.comparison.cable_prices import cable_cost
from torch_topoopt.comparison.cost import capital_cost, equal_cost_gbps
from torch_topoopt.comparison.estimate import ArchitectureEstimate, predict_architecture
from torch_topoopt.comparison.layouts import ComparedLayouts
from torch_topoopt.comparison.own_search import MOST_SERVERS, OwnSearches, sent_gbps
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.mesh.grid_plan import plan_on_grid
from torch_topoopt.planner.options import DEFAULT_OPTIONS
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.search.traffic import demand
from torch_topoopt.sim import LEVELS
from torch_topoopt.sim.demand_seconds import fastest_for
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.architectures import Build
    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network, Plan
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.planner.mesh.grid_plan import GridPlan
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.strategies import Strategy


_WIRED_FOR_DEMAND = ("topoopt", "topoopt-tors")


@dataclass(frozen=True)
class Compared:
    """One architecture, with its `layout` if layouts are compared.

    `server_gbps` is the most that a server can send. `cost` is in dollars by TopoOpt's prices
    (None: parts without a price); `iterations_per_s_per_mdollar` is per million of these.
    `cable_cost` is by HammingMesh's prices (`cable_prices`).
    """

    OMIT_IF_NONE: ClassVar = ("layout",)

    architecture: str
    server_gbps: float
    iteration_s: float
    compute_s: float
    bandwidth_tax: float
    cost: float | None
    iterations_per_s_per_mdollar: float | None
    cable_cost: float | None
    strategy: str
    layout: Layout | None = None


@dataclass(frozen=True)
class Comparison:
    """`rows` in the requested order; `plan` is TopoOpt's.

    `equal_cost_gbps`: the rate of the fat-tree that costs as much as TopoOpt; degree x rate if that
    fat-tree is still cheaper, None if every fat-tree costs more. `impossible`: why an architecture
    has no row because the cluster cannot be wired so. `strategies`, `topologies`: of the rows, by
    architecture; `grid_plans`: for rows and columns; `schedules` as in `compare`."""

    rows: tuple[Compared, ...]
    plan: Plan
    equal_cost_gbps: float | None
    impossible: Mapping[str, str]
    strategies: Mapping[str, Strategy]
    topologies: Mapping[str, Topology]
    grid_plans: Mapping[str, GridPlan]
    schedules: bool

    def row(self, name: str) -> Compared:
        return next(row for row in self.rows if row.architecture == name)


# parameters: the job, its planning, and the level
def compare(
    op_graph: OpGraph,
    cluster: Cluster,
    names: Sequence[str] = tuple(ARCHITECTURES),
    *,
    options: PlanningOptions = DEFAULT_OPTIONS,
    plan: Plan | None = None,
    level: str = "flow",
    packet_options: Mapping[str, Any] = MappingProxyType({}),
    schedules: bool = True,
    known: Sequence[Strategy] = (),
    on_progress: Callable[[float | None, str], None] = lambda fraction, text: None,
) -> Comparison:
    """Prices `op_graph` on the named architectures with the servers, ports and rate of `cluster`.

    `plan` is TopoOpt's; by default it is made with `options`. The other searches use the same
    options: with one fixed strategy, or nothing to search (data parallelism), none is tried.
    `known` strategies are additional candidates: those of a comparison at a lower bandwidth, so
    that no step of a sweep is slower than the one before. The fat-tree gets the link rate at which
    it costs as much as TopoOpt with patch panels (paper sections 5.1 and 5.2). The same arguments
    give the same figures. `on_progress` is called between steps with the fraction done; its
    exception ends the comparison.

    If `plan` has a layout, every static architecture gets the fastest layout on it, in closed form.

    With `schedules`, AllReduces are as in `predict_on`; else as in the papers.

    At level "packet" every architecture is priced packet by packet, with `packet_options` and one
    shortest path for each flow; strategies are still searched at flow level.

    Raises ValueError for an unknown level, architecture or accelerator, a model that does not fit,
    or a cluster that none of the architectures can have.
    """
    if plan is not None and plan.layout is not None:
        return _compare_layouts(op_graph, cluster, names, options, plan, level, on_progress)
    price = _price_at(level, packet_options, schedules)
    builds = {name: architecture(name) for name in names}

    def report(done: float, what: str) -> None:
        on_progress(done / (len(names) + 2), what)

    if plan is None:
        plan = _planned(op_graph, cluster, options, report)
    report(1, "ideal switch")
    candidates = _candidates(op_graph, cluster, options, plan, known, schedules)
    impossible: dict[str, str] = {}
    tree_gbps = _affordable_tree_gbps(cluster, plan, names, impossible)
    names = [name for name in names if name not in impossible]
    builder = _ArchitectureBuilder(op_graph, cluster, plan, options, tree_gbps, builds)
    found: dict[str, _Found] = {}
    for i, name in enumerate(sorted(names, key=lambda name: name == "ideal-switch")):  # the last
        report(2 + i, name)
        best = _best_row(name, builder, candidates, price)
        if isinstance(best, str):
            impossible[name] = best
        else:
            found[name] = best
    found = {name: found[name] for name in names if name in found}
    return _comparison(found, plan, tree_gbps, impossible, schedules)


def _affordable_tree_gbps(
    cluster: Cluster, plan: Plan, names: Sequence[str], impossible: dict[str, str]
) -> float | None:
    """`equal_cost_tree_gbps`; None, with the reason in `impossible`, where every fat-tree costs
    more."""
    try:
        return equal_cost_tree_gbps(cluster, plan.network)
    except ValueError as error:
        if "fat-tree" in names:
            impossible["fat-tree"] = str(error)
        return None


# parameters: as `compare`
def _compare_layouts(
    op_graph: OpGraph,
    cluster: Cluster,
    names: Sequence[str],
    options: PlanningOptions,
    plan: Plan,
    level: str,
    on_progress: Callable[[float | None, str], None],
) -> Comparison:
    if level != "flow":
        raise ValueError(f"level: layouts are not compared at level {level!r}")
    rows: list[Compared] = []
    topologies: dict[str, Topology] = {}
    impossible: dict[str, str] = {}
    tree_gbps = _affordable_tree_gbps(cluster, plan, names, impossible)
    layouts = ComparedLayouts(op_graph, cluster, options, plan)
    for i, name in enumerate(names):
        if name in impossible:
            continue
        on_progress(i / len(names), name)
        try:
            if name == "fat-tree":
                assert tree_gbps is not None
                topology = fat_tree.build(cluster, server_gbps=tree_gbps)
            elif name == "topoopt":
                topology = topoopt.build(cluster, network=plan.network)
            else:
                topology = architecture(name)(cluster, plan.demand, seed=options.seed)
            layout, estimate = layouts.on(topology)
        except ValueError as error:
            impossible[name] = str(error)
            continue
        origin = "topoopt" if layout == plan.layout else "own"
        row = _row(name, topology, cluster, estimate, origin)
        rows.append(replace(row, layout=layout))
        topologies[name] = topology
    if not rows:
        raise ValueError(next(iter(impossible.values())))
    return Comparison(tuple(rows), plan, tree_gbps, impossible, {}, topologies, {}, schedules=True)


@dataclass(frozen=True)
class _Found:
    """The best of one architecture."""

    row: Compared
    strategy: Strategy
    topology: Topology
    grid_plan: GridPlan | None = None


def _comparison(
    found: Mapping[str, _Found],
    plan: Plan,
    tree_gbps: float | None,
    impossible: dict[str, str],
    schedules: bool,
) -> Comparison:
    if not found:
        raise ValueError(next(iter(impossible.values())))
    return Comparison(
        tuple(best.row for best in found.values()),
        plan,
        tree_gbps,
        impossible,
        {name: best.strategy for name, best in found.items()},
        {name: best.topology for name, best in found.items()},
        {name: best.grid_plan for name, best in found.items() if best.grid_plan is not None},
        schedules,
    )


@dataclass(frozen=True)
class _Candidates:
    """Candidates on any network, each with its source; the plan's strategy, for networks wired for
    a job; the ideal switch's; the searches for more; and their results so far on static networks,
    with the rate of these."""

    origins: Mapping[Strategy, str]
    planned: Strategy
    of_switch: Strategy
    searches: OwnSearches
    found: list[tuple[float, tuple[Strategy, ...]]] = field(default_factory=list)

    def on(self, topology: Topology) -> Mapping[Strategy, str]:
        """The fastest candidates on the static `topology`, at flow level.

        On an ideal switch, they include everything found on networks that are no faster.
        """
        gbps, found = sent_gbps(topology), self.searches.of(topology)
        if topology.architecture == "ideal-switch":
            slower = (of_other for rate, of_other in self.found if rate <= gbps)
            found = tuple(dict.fromkeys((*found, *itertools.chain(*slower))))
        self.found.append((gbps, found))
        origins = {**dict.fromkeys(found, "own"), **self.origins}
        if topology.servers > MOST_SERVERS:
            return origins
        fastest = self.searches.fastest(topology, tuple(origins))
        return {fastest: origins[fastest]}


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
            search = NetworkSearch(seed=options.seed)
            if options.prices_schedules:
                search = fastest_for(options.mode, cluster, asked, search)
            network = find_network(
                cluster, asked, mode=options.mode, routing=options.routing, search=search
            )
            return topoopt.build(cluster, network=network)
        return self.builds[name](cluster, asked, seed=options.seed)


def _price_at(
    level: str, packet_options: Mapping[str, Any], schedules: bool
) -> Callable[..., ArchitectureEstimate]:
    """The function that prices a strategy on an architecture; ValueError for an unknown `level`."""
    if level not in LEVELS:
        raise ValueError(f"level: {level!r} is not one of {', '.join(LEVELS)}")
    options = packet_options if level == "packet" else {}
    return partial(predict_architecture, level=level, schedules=schedules, **options)


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
    known: Sequence[Strategy],
    schedules: bool,
) -> _Candidates:
    """The best on the ideal switch, the starts of searches, and `known`; the plan's strategy where
    nothing is searched."""

    def starts_at(gbps: float) -> tuple[Strategy, ...]:
        return _starts(op_graph, replace(cluster, link_gbps=gbps, port_gbps=None), options, plan)

    searches = OwnSearches(
        op_graph, cluster, options, plan.micro_batches, starts_at, schedules=schedules
    )
    starts = searches.starts(cluster.link_gbps)
    origins = {} if starts else {plan.strategy: "topoopt"}
    found = searches.of_switch(cluster.link_gbps) if starts else ()
    every = tuple(dict.fromkeys((*origins, *found, *starts, *known)))
    best = searches.fastest(ideal_switch.build(cluster), every)
    origins.setdefault(best, "ideal-switch")
    for start in starts:
        origins.setdefault(start, "start")
    for strategy in known:
        origins.setdefault(strategy, "known")
    return _Candidates(origins, plan.strategy, best, searches)


def _best_row(
    name: str,
    builder: _ArchitectureBuilder,
    candidates: _Candidates,
    price: Callable[..., ArchitectureEstimate],
) -> _Found | str:
    """The fastest of all candidates; or why the cluster cannot be wired for any."""
    op_graph, cluster = builder.op_graph, builder.cluster
    parts, seed = builder.plan.micro_batches, builder.options.seed
    best: _Found | None = None
    problem = ""
    topology: Topology | None = None
    origins: Mapping[Strategy, str] = {candidates.planned: "topoopt", **candidates.origins}
    if name not in _WIRED_FOR_DEMAND:
        try:
            topology = builder.build(name, candidates.of_switch)
        except ValueError as error:
            return str(error)
        if topology.reconfiguration is not None:
            origins = {candidates.of_switch: origins[candidates.of_switch]}
        else:
            origins = candidates.on(topology)
        if topology.grid is not None:
            return _placed_row(name, topology, builder, candidates, origins, price)
    for strategy, origin in origins.items():
        try:
            wired = topology or builder.build(name, strategy)
        except ValueError as error:
            problem = str(error)
            continue
        estimate = price(wired, op_graph, cluster, strategy, micro_batches=parts, seed=seed)
        if best is None or estimate.iteration_s < best.row.iteration_s:
            best = _Found(_row(name, wired, cluster, estimate, origin), strategy, wired)
    return best or problem


# parameters: as `_best_row`, and its results
def _placed_row(
    name: str,
    topology: Topology,
    builder: _ArchitectureBuilder,
    candidates: _Candidates,
    origins: Mapping[Strategy, str],
    price: Callable[..., ArchitectureEstimate],
) -> _Found:
    """On rows and columns: the best strategy and placement, planned together."""
    op_graph, cluster, options = builder.op_graph, builder.cluster, builder.options
    parts = builder.plan.micro_batches
    found = plan_on_grid(
        op_graph, cluster, topology, options, starts=candidates.searches.starts(cluster.link_gbps),
        known=tuple(origins), micro_batches=parts,
    )  # fmt: skip
    strategy, wired = found.placed.strategy, found.topology
    estimate = price(wired, op_graph, cluster, strategy, micro_batches=parts, seed=options.seed)
    origin = origins.get(strategy, "placed")
    return _Found(_row(name, wired, cluster, estimate, origin), strategy, wired, found)


def _starts(
    op_graph: OpGraph, cluster: Cluster, options: PlanningOptions, plan: Plan
) -> tuple[Strategy, ...]:
    """Candidates besides TopoOpt's strategy, and starts of searches on ports of that rate; none: no
    search."""
    if options.strategy_space == "data-parallel":
        return ()
    if options.strategy is not None:
        return (options.strategy,)
    return planning_starts(
        SearchProblem(
            op_graph,
            cluster,
            dimensions=options.dimensions,
            micro_batches=plan.micro_batches,
            optimizer_factor=options.optimizer_factor,
        )
    )


# parameters: as `compare`, its result, and one architecture with its rate
def planned_again(
    comparison: Comparison,
    op_graph: OpGraph,
    cluster: Cluster,
    name: str,
    factor: float,
    *,
    options: PlanningOptions,
) -> tuple[Strategy, Topology, int] | None:
    """The best strategy of `name` where all links have `factor` times the rate, its network, and
    its micro-batches; None where the cluster cannot be wired so.

    Searches as for a comparison of the architecture alone; strategies of `comparison` are
    known. Networks that are wired for a job are planned again, with TopoOpt's plan.
    """
    rates = cluster.port_gbps and tuple(
        tuple(gbps * factor for gbps in ports) for ports in cluster.port_gbps
    )
    there = replace(cluster, link_gbps=cluster.link_gbps * factor, port_gbps=rates)
    plan = comparison.plan
    if name in _WIRED_FOR_DEMAND:
        plan = planner.plan(op_graph, there, options)
    known = tuple(dict.fromkeys(comparison.strategies.values()))
    candidates = _candidates(op_graph, there, options, plan, known, comparison.schedules)
    tree_gbps = comparison.equal_cost_gbps
    builder = _ArchitectureBuilder(
        op_graph, there, plan, options, tree_gbps and tree_gbps * factor, {name: architecture(name)}
    )
    found = _best_row(name, builder, candidates, _price_at("flow", {}, comparison.schedules))
    if isinstance(found, str):
        return None
    return found.strategy, found.topology, plan.micro_batches


def equal_cost_tree_gbps(cluster: Cluster, network: Network) -> float:
    """The rate, in Gb/s, of the fat-tree that costs as much as TopoOpt's `network`; at most degree
    x link rate, that of the ideal switch. Raises ValueError where every fat-tree costs more."""
    cost = capital_cost(topoopt.build(cluster, network=network), cluster)
    most = cluster.degree * cluster.link_gbps
    cheapest = capital_cost(fat_tree.build(cluster, server_gbps=most), cluster)
    assert cost is not None
    assert cheapest is not None
    return most if cheapest.total <= cost.total else equal_cost_gbps(cluster, cost.total)


def _row(
    name: str, topology: Topology, cluster: Cluster, estimate: ArchitectureEstimate, origin: str
) -> Compared:
    cost = capital_cost(topology, cluster)
    per_million = None if cost is None else 1e6 / (estimate.iteration_s * cost.total)
    return Compared(
        architecture=name,
        server_gbps=sent_gbps(topology),
        iteration_s=estimate.iteration_s,
        compute_s=estimate.compute_s,
        bandwidth_tax=estimate.bandwidth_tax,
        cost=None if cost is None else cost.total,
        iterations_per_s_per_mdollar=per_million,
        cable_cost=cable_cost(topology, cluster),
        strategy=origin,
    )
