"""An OpGraph on a cluster in the form of the C++ core, lowered once for many strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from torch_topoopt import _core
from torch_topoopt.search.lowering import lower_ideal_switch, lower_job, lower_network

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Degrees, Network
    from torch_topoopt.search.lowering import ScheduleOptions
    from torch_topoopt.search.strategies import Strategy


_Made = TypeVar("_Made")
# Networks whose prices are kept, and the servers of all of them together.
_MOST_NETWORKS = 64
_KEPT_SERVERS = 2048


class LastMade(Generic[_Made]):
    """A cache of the last values, with their keys."""

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._made: dict[Hashable, _Made] = {}

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """The cached value for `key`, or else that of `make`."""
        found = self._made.pop(key) if key in self._made else make()
        self._made[key] = found
        if len(self._made) > self._most:
            del self._made[next(iter(self._made))]
        return found


class LoweredProblem:
    """The costs of every operator, and the current network.

    Costs are lowered again only for new degrees of splitting, a network only when it is another
    object than the last one. The optimizer keeps `optimizer_factor` bytes for each byte of
    gradients. All users of an instance share the cache of flow-level simulations. `schedules` and
    its options as `lower_network`.
    """

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        *,
        optimizer_factor: float = 0.0,
        schedules: bool = False,
        **schedule_options: Unpack[ScheduleOptions],
    ) -> None:
        self.op_graph = op_graph
        self.cluster = cluster
        self.optimizer_factor = optimizer_factor
        self.schedules = schedules
        self._schedule_options = schedule_options
        self._jobs: dict[int, tuple[frozenset[Degrees], _core.Job]] = {}
        self._network: tuple[Network | None, _core.RoutedNetwork] | None = None
        # its keys are networks: on many servers each holds some 100 MB of routes
        most = max(2, min(_MOST_NETWORKS, _KEPT_SERVERS // cluster.servers))
        self._prices: LastMade[_core.IterationPrices] = LastMade(most)
        self.experts: LastMade[dict[Strategy, str]] = LastMade()

    def job(self, degrees: Iterable[Degrees], micro_batches: int = 1) -> _core.Job:
        """The costs for at least these `degrees`; raises ValueError for an unknown accelerator."""
        wanted = frozenset(degrees)
        known, job = self._jobs.get(micro_batches, (frozenset(), None))
        if job is None or not wanted <= known:
            known |= wanted
            job = lower_job(
                self.op_graph,
                self.cluster,
                known,
                micro_batches=micro_batches,
                optimizer_factor=self.optimizer_factor,
            )
            self._jobs[micro_batches] = (known, job)
        return job

    def network(self, network: Network | None) -> _core.RoutedNetwork:
        """`network` lowered; None is the ideal switch."""
        if self._network is None or self._network[0] is not network:
            self._network = (network, self.lower(network))
        return self._network[1]

    def lower(self, network: Network | None) -> _core.RoutedNetwork:
        """The same, lowered again."""
        if network is None:
            return lower_ideal_switch(self.cluster, schedules=self.schedules)
        return lower_network(
            self.cluster, network, schedules=self.schedules, **self._schedule_options
        )

    def iteration_prices(
        self, network: Network | _core.RoutedNetwork | None, micro_batches: int = 1
    ) -> _core.IterationPrices:
        """The known prices of strategies on `network`; equal Networks have the same."""
        key = network, micro_batches
        return self._prices.get(key, lambda: _core.IterationPrices(self.cluster.servers))
