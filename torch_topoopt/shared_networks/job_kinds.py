"""The split of every kind of job (a model on so many servers) on every architecture.

TopoOpt's shards are planned, strategy and links together. On every network of switches the job has
its own strategy search, as if alone there (TopoOpt paper, section 5.1). Each is done once per kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.architectures import (
    fat_tree,
    ideal_switch,
    leaf_spine,
    topoopt,
)
from torch_topoopt.architectures.routing import Routes
from torch_topoopt.comparison.compare import equal_cost_tree_gbps
from torch_topoopt.comparison.own_search import OwnSearches, sent_gbps
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.shared_networks.concurrent_jobs import PlacedJob, run_concurrent
from torch_topoopt.sim.iteration_program import IterationTasks
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.architectures.topology import Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network, Plan
    from torch_topoopt.shared_networks.jobs_file import SharedCluster, SharedNetwork

_TREES: dict[str, Callable[..., Topology]] = {
    "fat-tree": fat_tree.build,
    "oversubscribed-fat-tree": fat_tree.build_oversubscribed,
    "leaf-spine": leaf_spine.build,
}
Kind = tuple[str, int]  # model, servers


class SwitchedNetwork:
    """A network of switches for all servers of a cluster.

    `switch_of` is the switch of each server.
    """

    def __init__(self, document: SharedCluster, network: SharedNetwork) -> None:
        """Raises ValueError where no fat-tree costs as little as TopoOpt does."""
        self.label = network.label
        self._cluster = document.cluster
        self._name = network.name
        self._asked_gbps = network.server_gbps
        if network.name == "fat-tree" and network.server_gbps is None:
            try:
                self._asked_gbps = equal_cost_tree_gbps(document.cluster, _wired(document.cluster))
            except ValueError as error:
                raise ValueError(
                    f"architectures: fat-tree: {error}; give it a server_gbps"
                ) from None
        self.topology = self._build(document.cluster, None)
        self.routes = Routes(self.topology)
        self.switch_of = self.routes.router
        self.server_gbps = sent_gbps(self.topology)

    def _build(self, cluster: Cluster, radix: int | None) -> Topology:
        if self._name == "ideal-switch":
            return ideal_switch.build(cluster, server_gbps=self._asked_gbps)
        return _TREES[self._name](cluster, server_gbps=self._asked_gbps, radix=radix)

    def alone(self, cluster: Cluster) -> Topology:
        """The part of it, of the same switches, for so many servers in a row."""
        return self._build(cluster, self.topology.switch_ports)


def _wired(cluster: Cluster) -> Network:
    """Any network of all ports; its cost depends on nothing else."""
    return find_network(cluster, topoopt.all_reduce_demand(cluster.servers))


@dataclass(frozen=True)
class SwitchedKind:
    """The tasks of a kind of job on a network of switches, and the seconds of an iteration of the
    job alone there, on servers in a row."""

    tasks: IterationTasks
    alone_s: float


class JobKinds:
    """Plans and searches, made on first use.

    `graph_of(model, accelerators)` gives the OpGraph of a model on so many accelerators together.
    `on_progress(text)` is called before each; its exception ends it.
    """

    def __init__(
        self,
        document: SharedCluster,
        graph_of: Callable[[str, int], OpGraph],
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._document = document
        self._graph_of = graph_of
        self._report = on_progress
        self._graphs: dict[Kind, OpGraph] = {}
        self._plans: dict[Kind, Plan] = {}
        self._searches: dict[Kind, OwnSearches] = {}
        self._switched: dict[tuple[str, Kind], SwitchedKind] = {}
        chosen = document.planning
        self._options = PlanningOptions(
            seed=document.seed,
            mode=chosen.mode,
            rounds=chosen.rounds,
            evaluations=chosen.evaluations,
        )

    def _graph(self, kind: Kind) -> OpGraph:
        if kind not in self._graphs:
            model, servers = kind
            accelerators = servers * self._document.cluster.accelerators_per_server
            self._graphs[kind] = self._graph_of(model, accelerators)
        return self._graphs[kind]

    def plan(self, kind: Kind) -> Plan:
        """The plan of a TopoOpt shard. Raises ValueError for a model that does not fit."""
        if kind not in self._plans:
            text = f"planning {kind[0]} on {kind[1]} servers"
            self._report(text)
            graph = self._graph(kind)
            planned = plan(
                graph,
                self._document.shard(kind[1]),
                self._options,
                on_progress=lambda now: self._report(f"{text}, round {now.round}"),
            )
            if not planned.predicts_time:
                raise ValueError(f"{kind[0]}: an iteration takes no time")
            self._plans[kind] = planned
        return self._plans[kind]

    def on(self, network: SwitchedNetwork, kind: Kind) -> SwitchedKind:
        """The kind on a network of switches. Raises ValueError for a model that does not fit."""
        key = network.label, kind
        if key not in self._switched:
            planned = self.plan(kind)
            self._report(f"{network.label}: searching a strategy for {kind[0]}")
            self._switched[key] = self._found(network, kind, planned)
        return self._switched[key]

    def _found(self, network: SwitchedNetwork, kind: Kind, planned: Plan) -> SwitchedKind:
        graph, cluster = self._graph(kind), self._document.shard(kind[1])
        options = self._options
        starts = planning_starts(
            SearchProblem(
                graph,
                cluster,
                dimensions=options.dimensions,
                micro_batches=planned.micro_batches,
                optimizer_factor=options.optimizer_factor,
            )
        )
        searches = self._searches.setdefault(
            kind, OwnSearches(graph, cluster, options, planned.micro_batches, lambda _: starts)
        )
        alone = network.alone(cluster)
        candidates = dict.fromkeys((*searches.of(alone), planned.strategy, *starts))
        strategy = searches.fastest(alone, tuple(candidates))
        routes = Routes(alone)
        tasks = IterationTasks.of(graph, cluster, routes.rings, strategy, planned.micro_batches)
        job = PlacedJob.on(routes, tasks, range(kind[1]), seed=self._document.seed)
        (times, *_), _ = run_concurrent(routes, [job], [0.0], 1)
        return SwitchedKind(tasks, float(times[0]))
