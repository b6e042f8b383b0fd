"""Planning for a network whose servers lie in rows and columns: strategy and placement together.

The strategy is searched with several numberings of the servers, since the search proposes adjacent
numbers: row by row, and board by board (squares of four without boards). `server_order` then places
the best strategies of all searches, and the known ones, on the grid: logical axes become rows and
columns. The flow level decides, with rings of each group's own shape.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.architectures.routing import Routes, grids_of, lower_topology
from torch_topoopt.planner.mesh.foldings import AxisFold, Folding, by_boards, row_major
from torch_topoopt.planner.mesh.natural_rings import natural_rings
from torch_topoopt.planner.mesh.pricing import GridPricing, moved
from torch_topoopt.planner.mesh.server_order import best_order, naive
from torch_topoopt.search.chains import ThreadedChains
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import expert_starts, layer_runs_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt import _core
    from torch_topoopt.architectures.topology import ServerGrid, Topology
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Ring
    from torch_topoopt.planner.mesh.foldings import Order
    from torch_topoopt.planner.mesh.server_order import PlacedStrategy
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.strategies import Strategy

MOST_SEARCHED = 256  # servers; a search routes all their pairs
_KEPT = 2  # strategies kept per search
_PLACED = 3  # strategies whose order of servers is searched
_FEW = 64  # servers; above, one strategy is placed, and starts are left to the search


@dataclass(frozen=True)
class GridPlan:
    """The fastest `placed` strategy, and the network with the rings of its groups. `naive` is the
    fastest without placement: servers in the order of numbers, with the network's own rings."""

    JSON_FIELDS: ClassVar = (
        "placed.how", "placed.natural_rings", "placed.order",
        "without_placement_s=naive.iteration_s",
    )  # fmt: skip

    placed: PlacedStrategy
    naive: PlacedStrategy
    topology: Topology


# parameters: the job, the grid, the options, and known strategies
def plan_on_grid(
    op_graph: OpGraph,
    cluster: Cluster,
    topology: Topology,
    options: PlanningOptions,
    *,
    starts: Sequence[Strategy],
    known: Sequence[Strategy] = (),
    micro_batches: int = 1,
) -> GridPlan:
    """The best strategy and placement found for `op_graph` on `topology`.

    Searches begin at `starts`, in logical numbers; without any, or on more than 256 servers, there
    is no search. `known` strategies, on servers of `topology`, are candidates, too. `options` set
    the splits and the budget, as in `planner.plan`. The plan is never slower than a known or
    unplaced strategy. The same arguments give the same plan.

    Raises ValueError for a topology without a grid, or no strategy at all, and as `planner.plan`.
    """
    pricing = GridPricing(op_graph, cluster, topology, micro_batches)
    few = topology.servers <= _FEW
    searched = starts and topology.servers <= MOST_SEARCHED and options.strategy is None
    candidates = dict.fromkeys((*known, *(() if searched and not few else starts)))
    if searched:
        search = _NumberedSearch(pricing, options, tuple(starts))
        for order in _numberings(pricing.grid):
            candidates.update(dict.fromkeys(search.found(order, with_starts=few)))
    if not candidates:
        raise ValueError("strategy: none to begin at, and none that is known")
    without = min((naive(pricing, s) for s in candidates), key=lambda placed: placed.iteration_s)
    fastest = sorted(candidates, key=pricing.seconds)[: _PLACED if few else 1]
    tried = [best_order(pricing, strategy) for strategy in fastest]
    best = min((without, *tried), key=lambda placed: placed.iteration_s)
    wired = pricing.with_rings(best.strategy) if best.natural_rings else topology
    return GridPlan(best, without, wired)


def renumbered(topology: Topology, order: Order) -> Topology:
    """`topology` with server `order[i]` renumbered i, without its grid.

    Raises ValueError for explicit paths, which are not renumbered here.
    """
    if topology.paths:
        raise ValueError(f"topology: {topology.architecture} has paths of its own")
    number = list(range(topology.nodes))
    for i, server in enumerate(order):
        number[server] = i

    def rings_as(rings: Sequence[Ring]) -> tuple[Ring, ...]:
        return tuple(replace(r, servers=tuple(number[s] for s in r.servers)) for r in rings)

    return replace(
        topology,
        links=tuple(
            replace(link, source=number[link.source], target=number[link.target])
            for link in topology.links
        ),
        rings=rings_as(topology.rings),
        group_rings=tuple(map(rings_as, topology.group_rings)),
        grid=None,
    )


def _numberings(grid: ServerGrid) -> list[Order]:
    """Orders to search in, each once."""
    found = [row_major(grid)]
    if grid.board_rows * grid.board_columns > 1:
        found.append(by_boards(grid))
    elif grid.rows % 2 == grid.columns % 2 == 0:
        outer = AxisFold(grid.rows // 2, grid.columns // 2, turns=True)
        found.append(Folding((AxisFold(2, 2), outer), (0, 1), (0, 1)))
    return list(dict.fromkeys(folding.order(grid) for folding in found))


class _NumberedSearch:
    """Strategy searches with several numberings of the servers."""

    def __init__(
        self, pricing: GridPricing, options: PlanningOptions, starts: tuple[Strategy, ...]
    ) -> None:
        self._pricing = pricing
        self._options = options
        self._starts = starts
        self._problem = SearchProblem(
            pricing.op_graph,
            pricing.cluster,
            None,
            starts,
            dimensions=options.dimensions,
            micro_batches=pricing.micro_batches,
            optimizer_factor=options.optimizer_factor,
        )

    def found(self, order: Order, *, with_starts: bool) -> list[Strategy]:
        """The best strategies, on servers of the grid, and where the search began."""
        options, servers = self._options, self._pricing.cluster.servers
        problem = self._problem.changed(self._network(order), self._starts)
        found = (*self._starts, *expert_starts(problem))
        runs = layer_runs_below(self._problem.changed(problem.network, found))
        starts = tuple(dict.fromkeys((*found, *runs)))
        chains = ThreadedChains(
            problem.changed(problem.network, starts),
            seed=options.seed,
            chains=options.search.chains,
            workers=options.search.workers,
        )
        evaluations = options.evaluations_of(self._pricing.op_graph, servers)
        best = [c.strategy for c in chains.run(evaluations).candidates[:_KEPT]]
        return [moved(strategy, order) for strategy in (*best, *(starts if with_starts else ()))]

    def _network(self, order: Order) -> _core.RoutedNetwork:
        """All pairs, and natural rings of the sets that a search proposes."""
        grid, topology = self._pricing.grid, self._pricing.topology
        servers = topology.servers
        routes = Routes(topology)
        groups = []
        for count in (k for k in range(3, servers) if servers % k == 0):
            stride = servers // count
            sets = [range(first, first + count) for first in range(0, servers, count)]
            sets += [range(first, servers, stride) for first in range(stride)]
            for members in sets:
                there = tuple(sorted(order[i] for i in members))
                groups.append(natural_rings(routes, grid, there))
        ringed = replace(topology, group_rings=tuple(rings for rings in groups if rings))
        number = {server: i for i, server in enumerate(order)}
        rows_of = {
            tuple(sorted(number[s] for s in group)): tuple(
                tuple(number[s] for s in r) for r in rows
            )
            for group, rows in grids_of(ringed).items()
        }
        pairs = itertools.permutations(range(servers), 2)
        return lower_topology(Routes(renumbered(ringed, order)), pairs, rows_of).network
