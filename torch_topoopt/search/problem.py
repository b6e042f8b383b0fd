"""A strategy search in the form of the C++ core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_topoopt import _core
from torch_topoopt.plan import Degrees, Network
from torch_topoopt.search.lowered_problem import LastMade, LoweredProblem
from torch_topoopt.search.lowering import (
    degrees_of,
    memory_limit,
)
from torch_topoopt.search.strategy_space import check_strategy, strategy_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import OpGraph, SplitDimension
    from torch_topoopt.plan import Cluster, Placement
    from torch_topoopt.search.strategies import Executable, Strategy

MAX_TRANSFERS = 40_000  # about one second at flow level
DEFAULT_BETA = 50.0  # initial: a strategy 2 % slower is accepted with probability 1/e


class _Space(NamedTuple):
    """The proposals of the search, and all degrees of splitting in them."""

    core: _core.SearchSpace
    degrees: frozenset[Degrees]


@dataclass(frozen=True)
class SearchProblem:
    """The search for the best strategy of `op_graph` on a cluster wired as `network`.

    The search begins at the cheapest of `starts` that fits into memory. Without a network, the
    servers are on an ideal switch. Operators are split by samples and along `dimensions`. Only
    `executable` placements are proposed; starts are not checked for that. The batch is split into
    `micro_batches` equal parts. The optimizer keeps `optimizer_factor` bytes per byte of gradients.

    `beta` applies before cooling: a strategy slower by a fraction f is accepted with probability
    exp(-beta f). No proposal makes more than `max_transfers` transfers between servers, one way,
    unless it lowers their number. Every second chain begins at `other_starts`, if there are any.
    """

    op_graph: OpGraph
    cluster: Cluster
    network: Network | _core.RoutedNetwork | None = None
    starts: tuple[Strategy, ...] = ()
    beta: float = DEFAULT_BETA
    executable: Executable | None = None
    dimensions: tuple[SplitDimension, ...] = ()
    micro_batches: int = 1
    optimizer_factor: float = 0.0
    max_transfers: int = MAX_TRANSFERS
    other_starts: tuple[Strategy, ...] = ()

    def lowered(self, seed: int) -> dict[str, Any]:
        """The arguments of a chain of _core with that seed; the same objects on every call.

        Raises ValueError for a negative seed, an unknown accelerator or a start that does not place
        the operators.
        """
        if seed < 0:
            raise ValueError(f"seed: {seed} is negative")
        return {
            "job": self._problem.job(self._degrees, self.micro_batches),
            "network": self.core_network,
            "space": self._space.core,
            "starts": self._checked_starts,
            "memory_limit_bytes": memory_limit(self.cluster),
            "max_transfers": self.max_transfers,
            "seed": seed % 2**64,
            "beta": self.beta,
        }

    def changed(
        self, network: Network | _core.RoutedNetwork | None, starts: tuple[Strategy, ...]
    ) -> SearchProblem:
        """The same on another network or from other starts, without lowering the rest again."""
        made = replace(self, network=network, starts=starts)
        made.__dict__["_problem"] = self._problem
        made.__dict__["_space"] = self._space
        if network is self.network:
            made.__dict__["core_network"] = self.core_network
        return made

    def sharing(
        self, lowered: LoweredProblem, space_of: SearchProblem | None = None
    ) -> SearchProblem:
        """The same, reusing what `lowered` has cached for the same model and cluster, and the space
        of a problem that differs in nothing else."""
        made = replace(self)
        made.__dict__["_problem"] = lowered
        if space_of is not None:
            made.__dict__["_space"] = space_of._space
        return made

    def colder(self, beta: float) -> SearchProblem:
        """The same with another `beta`, without lowering anything again."""
        return self._with(replace(self, beta=beta))

    def with_other_starts(self, starts: tuple[Strategy, ...]) -> SearchProblem:
        """The same with these `other_starts`, without lowering anything again."""
        return self._with(replace(self, other_starts=starts))

    def _with(self, made: SearchProblem) -> SearchProblem:
        """`made`, with this problem's caches."""
        made.__dict__.update({k: v for k, v in self.__dict__.items() if k not in vars(made)})
        return made

    @property
    def iteration_prices(self) -> _core.IterationPrices:
        """Cached flow-level prices of strategies on the network."""
        return self._problem.iteration_prices(self.network, self.micro_batches)

    @property
    def experts(self) -> LastMade[dict[Strategy, str]]:
        """The cached model data for experts' strategies."""
        return self._problem.experts

    def coarse_simulator(self, strategies: Sequence[Strategy]) -> _core.CoarseSimulator:
        """The coarse simulator on the network, for `strategies` that are legal."""
        return _core.CoarseSimulator(self.job(strategies), self.core_network)

    def job(self, strategies: Sequence[Strategy]) -> _core.Job:
        """The costs of all proposals and of `strategies`."""
        degrees = self._degrees | degrees_of(strategies)
        return self._problem.job(degrees, self.micro_batches)

    def named(self, strategy: Sequence[Placement]) -> Strategy:
        """A strategy of the core, with the names of the operators."""
        return tuple(
            replace(placement, operator=operator.name)
            for operator, placement in zip(self.op_graph.operators, strategy, strict=True)
        )

    @cached_property
    def _problem(self) -> LoweredProblem:
        return LoweredProblem(self.op_graph, self.cluster, optimizer_factor=self.optimizer_factor)

    @cached_property
    def _space(self) -> _Space:
        space = strategy_space(
            self.op_graph,
            self.cluster.servers,
            self.executable,
            dimensions=self.dimensions,
            micro_batches=self.micro_batches,
        )
        degrees = frozenset(move.degrees for moves in space.moves for move in moves)
        names = [operator.kind for operator in self.op_graph.operators]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        kinds = [numbers[name] for name in names]
        return _Space(_core.SearchSpace(*space.groups(), space.kind, kinds), degrees)

    @cached_property
    def _degrees(self) -> frozenset[Degrees]:
        return self._space.degrees | degrees_of(self.starts)

    @cached_property
    def _checked_starts(self) -> tuple[Strategy, ...]:
        for start in self.starts:
            check_strategy(
                self.op_graph, self.cluster.servers, start, micro_batches=self.micro_batches
            )
        return self.starts

    @cached_property
    def core_network(self) -> _core.RoutedNetwork:
        """The network in the form of the C++ core."""
        if self.network is None or isinstance(self.network, Network):
            return self._problem.network(self.network)
        return self.network
