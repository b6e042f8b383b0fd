"""The price of a strategy on a grid, with natural rings for every group that has them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from torch_topoopt import _core
from torch_topoopt.architectures.routing import FoldedPairs, Routes, ring_hops
from torch_topoopt.plan import Demand, GroupDemand, PairDemand
from torch_topoopt.planner.mesh.natural_rings import natural_rings
from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.search.lowering import degrees_of
from torch_topoopt.search.strategy_space import check_strategy
from torch_topoopt.search.traffic import demand

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.architectures.topology import ServerGrid, Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Ring
    from torch_topoopt.planner.mesh.foldings import Order
    from torch_topoopt.search.strategies import Strategy

_ALL_PAIRS = 64  # servers; up to here the routes of all pairs are found at once


class GridPricing:
    """Prices of one OpGraph on one network whose servers lie in a grid.

    Raises ValueError for a topology without a grid, or of another number of servers.
    """

    def __init__(
        self, op_graph: OpGraph, cluster: Cluster, topology: Topology, micro_batches: int = 1
    ) -> None:
        if topology.grid is None:
            raise ValueError(f"topology: the servers of {topology.architecture} lie in no grid")
        if topology.servers != cluster.servers:
            raise ValueError(
                f"topology: has {topology.servers} servers, and the cluster {cluster.servers}"
            )
        self.op_graph = op_graph
        self.cluster = cluster
        self.topology = topology
        self.grid: ServerGrid = topology.grid
        self.micro_batches = micro_batches
        self.priced = 0  # strategies that were simulated
        self._routes = Routes(topology)
        self._problem = LoweredProblem(op_graph, cluster)
        self._rings: dict[tuple[int, ...], tuple[Ring, ...]] = {}
        self._demands: dict[Strategy, Demand] = {}
        self._known: dict[tuple[Strategy, Order, bool], float] = {}

    @cached_property
    def distances(self) -> NDArray[np.int64]:
        """Least hops between any two servers, [source, target]."""
        count, nodes = self.topology.servers, self.topology.nodes
        ends = np.array([(link.source, link.target) for link in self.topology.links]).T
        links = csr_array((np.ones(ends.shape[1]), tuple(ends)), shape=(nodes, nodes))
        hops = shortest_path(links, unweighted=True, indices=range(count))
        found: NDArray[np.int64] = hops[:, :count].astype(np.int64)
        return found

    def demand_of(self, strategy: Strategy) -> Demand:
        """The demand of `strategy`, in its own numbers; raises ValueError if it does not fit."""
        found = self._demands.get(strategy)
        if found is None:
            count = self.cluster.servers
            check_strategy(self.op_graph, count, strategy, micro_batches=self.micro_batches)
            found = self._demands[strategy] = demand(self.op_graph, strategy, count)
        return found

    def with_rings(self, strategy: Strategy) -> Topology:
        """The network with natural rings for the groups of `strategy`; itself without any."""
        return self._ringed(self.demand_of(strategy))

    def seconds(
        self, strategy: Strategy, order: Order | None = None, *, natural: bool = True
    ) -> float:
        """An iteration of `strategy` with server i at `order[i]` (default: i), at flow level.

        Without `natural` rings, groups use the network's own alone. Raises ValueError for a
        strategy that does not fit.
        """
        order = tuple(range(self.topology.servers)) if order is None else order
        known = self._known.get((strategy, order, natural))
        if known is not None:
            return known
        traffic = demand_at(self.demand_of(strategy), order)
        topology = self._ringed(traffic) if natural else self.topology
        if natural and topology is self.topology:
            seconds = self.seconds(strategy, order, natural=False)
        else:
            seconds = self._simulated(moved(strategy, order), topology, traffic)
        self._known[strategy, order, natural] = seconds
        return seconds

    def _ringed(self, traffic: Demand) -> Topology:
        groups = sorted(group.servers for group in traffic.groups if group.size_bytes)
        found = {group: rings for group in groups if (rings := self._natural(group))}
        if not found:
            return self.topology
        whole = found.pop(tuple(range(self.topology.servers)), self.topology.rings)
        return replace(self.topology, rings=whole, group_rings=tuple(found.values()))

    def _natural(self, group: tuple[int, ...]) -> tuple[Ring, ...]:
        rings = self._rings.get(group)
        if rings is None:
            rings = self._rings[group] = natural_rings(self._routes, self.grid, group)
        return rings

    @cached_property
    def _every_pair(self) -> FoldedPairs:
        servers = range(self.topology.servers)
        return FoldedPairs(self._routes, itertools.permutations(servers, 2))

    def _simulated(self, strategy: Strategy, topology: Topology, traffic: Demand) -> float:
        if topology.servers <= _ALL_PAIRS:
            folded = self._every_pair
        else:
            routes = self._routes.with_rings(topology)
            pairs = {(pair.source, pair.target) for pair in traffic.pairs if pair.size_bytes}
            for group in traffic.groups:
                if group.size_bytes and len(group.servers) > 1:
                    pairs |= ring_hops(routes.rings, group.servers)
            folded = FoldedPairs(routes, pairs)
        job = self._problem.job(degrees_of([strategy]), self.micro_batches)
        self.priced += 1
        return _core.simulate_iteration(job, folded.network(topology).network, strategy).iteration_s


def moved(strategy: Strategy, order: Order) -> Strategy:
    """`strategy` with server i at `order[i]`."""
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    placed = []
    for placement in strategy:
        servers = known.get(placement.servers)
        if servers is None:
            servers = known[placement.servers] = tuple(order[s] for s in placement.servers)
        placed.append(placement.on(servers))
    return tuple(placed)


def demand_at(traffic: Demand, order: Order) -> Demand:
    """`traffic` with server i at `order[i]`."""
    return Demand(
        tuple(
            GroupDemand(tuple(sorted(order[s] for s in group.servers)), group.size_bytes)
            for group in traffic.groups
        ),
        tuple(
            PairDemand(order[pair.source], order[pair.target], pair.size_bytes)
            for pair in traffic.pairs
        ),
    )
