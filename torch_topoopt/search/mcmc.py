"""Front of the C++ strategy search (paper section 4.1, the Computation x Communication plane).

FlexFlow's Markov chain Monte Carlo: propose another server set for an operator, spread a set along
the edges of the graph, or swap two sets; simulate the iteration; accept by Metropolis' rule against
the current strategy, with the relative change of the predicted time as the energy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import Network, SearchSample
from torch_topoopt.search.lowering import (
    degrees_of,
    lower_job,
    lower_network,
    lower_placement,
    memory_limit,
    raise_placement,
)
from torch_topoopt.search.strategy_space import check_strategy, strategy_space

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch_topoopt.op_graph import OpGraph, SplitDimension
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Executable, Strategy

DEFAULT_BETA = 50.0  # a strategy 2 % slower is accepted with probability 1/e
_SLICE = 20  # evaluations between two looks at Ctrl-C


class StrategySearch:
    """One chain at one network. It holds no thread and no process: drop it at any time."""

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        network: Network | _core.RoutedNetwork,
        starts: Sequence[Strategy],
        *,
        seed: int = 0,
        beta: float = DEFAULT_BETA,
        executable: Executable | None = None,
        dimensions: Collection[SplitDimension] = (),
    ) -> None:
        """Starts at the cheapest of `starts` that fits into memory; `network` may be lowered.

        Beside samples, operators are split along `dimensions` (see strategy_space). Only what is
        `executable` is proposed; the starts are taken as they are. Raises ValueError
        for an unknown accelerator, a start that does not place `op_graph`, a `beta` that is not
        above 0, a negative seed, or if no start fits.
        """
        if seed < 0:
            raise ValueError(f"seed: {seed} is negative")
        for start in starts:
            check_strategy(op_graph, cluster.servers, start)
        space = strategy_space(op_graph, cluster.servers, executable, dimensions=dimensions)
        degrees = {move.degrees for moves in space.moves for move in moves} | degrees_of(starts)
        self._names = tuple(operator.name for operator in op_graph.operators)
        self._core = _core.StrategySearch(
            job=lower_job(op_graph, cluster, degrees),
            network=lower_network(cluster, network) if isinstance(network, Network) else network,
            spaces=space.groups(),
            space_of_operator=space.kind,
            starts=[[lower_placement(placement) for placement in start] for start in starts],
            memory_limit_bytes=memory_limit(cluster),
            seed=seed % 2**64,
            beta=beta,
        )

    def step(self, evaluations: int) -> SearchSample:
        """Judges that many proposals, without the interpreter lock; returns where the chain is."""
        self._core.step(evaluations)
        return self.sample()

    def run(
        self, evaluations: int, on_sample: Callable[[SearchSample], None] | None = None
    ) -> SearchSample:
        """Runs in short slices, so that Ctrl-C ends it between two; calls back after each."""
        left = evaluations
        while left > 0:
            sample = self.step(min(_SLICE, left))
            left -= _SLICE
            if on_sample is not None:
                on_sample(sample)
        return self.sample()

    def sample(self) -> SearchSample:
        """Where the chain is now."""
        core = self._core
        return SearchSample(core.evaluations, core.current_s, core.best_s)

    @property
    def accepted(self) -> int:
        """Proposals accepted so far."""
        return self._core.accepted

    @property
    def simulations(self) -> int:
        """Strategies simulated so far; other evaluations were known, unchanged or did not fit."""
        return self._core.simulations

    def best(self) -> Strategy:
        """The cheapest strategy seen."""
        return tuple(
            raise_placement(name, lowered)
            for name, lowered in zip(self._names, self._core.best(), strict=True)
        )
