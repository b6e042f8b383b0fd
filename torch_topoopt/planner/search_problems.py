"""The starts and problems of a planning's searches, for each number of micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import expert_starts
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.search.strategies import check_memory
from torch_topoopt.search.strategy_space import check_strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Network
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.strategies import Strategy

    Starts = dict[int, tuple[Strategy, ...]]  # by number of micro-batches


class SearchProblems:
    """The searches of `op_graph` on `cluster` for `options`; shared costs are lowered once, and
    experts' strategies are ranked once.

    Everywhere, `count` is the number of micro-batches, one of `counts`.
    """

    def __init__(
        self,
        op_graph: OpGraph,
        cluster: Cluster,
        options: PlanningOptions,
        *,
        schedules: bool = False,
        before: SearchProblems | None = None,
    ) -> None:
        """`schedules` as `LoweredProblem`. Spaces are those of `before`, which differs in nothing
        else. Raises ValueError for a number of micro-batches that does not divide the batch."""
        self.op_graph = op_graph
        self.cluster = cluster
        self.options = options
        self.lowered = LoweredProblem(
            op_graph,
            cluster,
            optimizer_factor=options.optimizer_factor,
            schedules=schedules,
        )
        self.counts = options.micro_batch_counts(op_graph.batch_size)
        for count in self.counts:
            if op_graph.batch_size % count:
                raise ValueError(
                    f"micro_batches: {count} does not divide the batch of {op_graph.batch_size}"
                )
        self._problems: dict[int, SearchProblem] = {}  # by number of micro-batches
        self._before = {} if before is None else before._problems
        self._expert_starts: list[tuple[Network | None, int, tuple[Strategy, ...]]] = []

    def starts(self, count: int) -> tuple[Strategy, ...]:
        """The starts with `count` micro-batches, experts' strategies included; raises as
        `check`."""
        options = self.options
        if options.strategy is not None:
            return (self.check(options.strategy, count),)
        found = planning_starts(self.problem(None, (), count))
        return tuple(dict.fromkeys((*found, *self.experts(None, found, count))))

    def check(self, strategy: Strategy, count: int) -> Strategy:
        """Returns `strategy`, or raises ValueError if it is not legal or does not fit."""
        options, cluster = self.options, self.cluster
        check_strategy(self.op_graph, cluster.servers, strategy, micro_batches=count)
        return check_memory(
            self.op_graph,
            cluster,
            strategy,
            micro_batches=count,
            optimizer_factor=options.optimizer_factor,
        )

    def problem(
        self, network: Network | None, starts: tuple[Strategy, ...], count: int
    ) -> SearchProblem:
        """The search with `count` micro-batches; constant parts are lowered once."""
        options = self.options
        if count not in self._problems:
            self._problems[count] = SearchProblem(
                self.op_graph,
                self.cluster,
                network,
                starts,
                executable=options.executable,
                dimensions=options.dimensions,
                micro_batches=count,
                optimizer_factor=options.optimizer_factor,
            ).sharing(self.lowered, self._before.get(count))
        return self._problems[count].changed(network, starts)

    def experts(
        self, network: Network | None, starts: tuple[Strategy, ...], count: int
    ) -> tuple[Strategy, ...]:
        """Experts' strategies to begin at on `network`, if strategies are searched."""
        if self.options.strategy is not None:
            return ()
        for of, with_count, found in self._expert_starts:
            if of is network and with_count == count:
                return found
        found = expert_starts(self.problem(network, starts, count))
        self._expert_starts.append((network, count, found))
        return found

    def of_each_count(self, starts: Callable[[int], tuple[Strategy, ...]]) -> Starts:
        """The start for each number of micro-batches; raises ValueError if none has one."""
        found: Starts = {}
        problem: ValueError | None = None
        for count in self.counts:
            try:
                found[count] = starts(count)
            except ValueError as error:
                problem = problem or error
        if not found:
            assert problem is not None
            raise problem
        return found
