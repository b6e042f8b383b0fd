"""All architectures side by side: iteration time, cost, and what a dollar buys.

Every architecture gets the best of a few strategies, priced on it: the one that `planner.plan`
finds together with TopoOpt's network, the one that the same search finds on the ideal switch, and
those that every search starts from. Networks that are wired for a job are wired for each of them.
Where circuits move during the job, it is the ideal switch's strategy, which the search found
without knowing the network, as in the paper (section 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch_topoopt import planner
from torch_topoopt.architecture_packets import predict_packets
from torch_topoopt.architecture_sim import ArchitectureEstimate, predict_architecture
from torch_topoopt.architectures import ARCHITECTURES, architecture, fat_tree, topoopt
from torch_topoopt.cost import capital_cost, equal_cost_gbps
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.strategies import starting_strategies
from torch_topoopt.search.strategy_space import DIMENSIONS
from torch_topoopt.search.traffic import demand
from torch_topoopt.search.two_levels import TwoLevelSearch
from torch_topoopt.sim import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Plan
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
    fat-tree that costs as much as TopoOpt (degree x rate where the fat-tree is cheaper still)."""

    rows: tuple[Compared, ...]
    plan: Plan
    equal_cost_gbps: float

    def row(self, name: str) -> Compared:
        return next(row for row in self.rows if row.architecture == name)


def compare(
    op_graph: OpGraph,
    cluster: Cluster,
    names: Sequence[str] = tuple(ARCHITECTURES),
    *,
    seed: int = 0,
    rounds: int = 2,
    evaluations: int = 200,
    level: str = "flow",
    packet_options: Mapping[str, Any] = MappingProxyType({}),
    on_progress: Callable[[float | None, str], None] = lambda fraction, text: None,
) -> Comparison:
    """Prices `op_graph` on the named architectures with the servers, ports and rate of `cluster`.

    The fat-tree gets the link rate at which it costs what TopoOpt with patch panels costs (paper
    sections 5.1 and 5.2). The same arguments give the same figures. `on_progress` is called between
    steps with the fraction done, and whatever it raises ends the comparison.

    At level "packet" every architecture is priced packet by packet, with `packet_options` and one
    shortest path for each flow; strategies are searched at flow level all the same.

    Raises ValueError for an unknown level, architecture or accelerator, a model that does not fit,
    or a cluster that one of the architectures cannot have.
    """
    if level not in LEVELS:
        raise ValueError(f"level: {level!r} is not one of {', '.join(LEVELS)}")
    for name in names:
        architecture(name)
    steps = len(names) + 2

    def show(now: planner.PlanProgress) -> None:
        done = (now.round - 1 + now.evaluations / max(1, now.budget)) / now.rounds
        on_progress(min(done, 1.0) / steps, f"TopoOpt, round {now.round} of at most {now.rounds}")

    plan = planner.plan(
        op_graph, cluster, seed=seed, rounds=rounds, evaluations=evaluations, on_progress=show
    )
    starts = starting_strategies(op_graph, cluster)
    switch = TwoLevelSearch(
        SearchProblem(op_graph, cluster, None, (plan.strategy, *starts), dimensions=DIMENSIONS),
        seed=seed,
    )
    budget = rounds * evaluations

    def searched(now: ChainProgress) -> None:
        on_progress((1 + now.evaluations / max(1, budget)) / steps, "ideal switch")

    switch.run(budget, searched)
    strategies: dict[Strategy, str] = {plan.strategy: "topoopt", switch.best(): "ideal-switch"}
    for start in starts:
        strategies.setdefault(start, "start")
    panels = topoopt.build(cluster, network=plan.network)
    cost = capital_cost(panels, cluster)
    assert cost is not None
    tree_gbps = _equal_cost(cluster, cost.total)
    rows = []
    for i, name in enumerate(names):
        on_progress((2 + i) / steps, name)
        best: Compared | None = None
        for strategy, origin in strategies.items():
            topology = _build(name, op_graph, cluster, strategy, plan, tree_gbps, seed)
            if topology.reconfiguration is not None and strategy != switch.best():
                continue
            what = (topology, op_graph, cluster, strategy)
            if level == "packet":
                estimate = predict_packets(*what, seed=seed, **packet_options)
            else:
                estimate = predict_architecture(*what, seed=seed)
            if best is None or estimate.iteration_s < best.iteration_s:
                best = _row(name, topology, cluster, estimate, origin)
        assert best is not None
        rows.append(best)
    return Comparison(tuple(rows), plan, tree_gbps)


def _equal_cost(cluster: Cluster, budget: float) -> float:
    """The fat-tree's rate; degree x link rate at most: more than the ideal switch it never gets."""
    most = cluster.degree * cluster.link_gbps
    cheapest = capital_cost(fat_tree.build(cluster, server_gbps=most), cluster)
    assert cheapest is not None
    return most if cheapest.total <= budget else equal_cost_gbps(cluster, budget)


def _build(
    name: str,
    op_graph: OpGraph,
    cluster: Cluster,
    strategy: Strategy,
    plan: Plan,
    tree_gbps: float,
    seed: int,
) -> Topology:
    if name == "fat-tree":
        return fat_tree.build(cluster, server_gbps=tree_gbps)
    if name == "topoopt" and strategy == plan.strategy:
        return topoopt.build(cluster, network=plan.network)
    asked = demand(op_graph, strategy, cluster.servers)
    return ARCHITECTURES[name](cluster, asked, seed=seed)


def _sent_gbps(topology: Topology) -> list[float]:
    """What each server can send at once."""
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
