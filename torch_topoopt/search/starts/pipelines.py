"""Pipelines to start from: the graph cut into stages of equal time, each on servers of its own.

A pipeline is a strategy whose stages are on disjoint servers, with more than one micro-batch. Its
schedule is 1F1B (csrc/sim/iteration/placements.h, microBatchesInFlight).
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.lowering import degrees_of
from torch_topoopt.search.shards import shard_cost
from torch_topoopt.search.stages import Stages, any_stages, cut_points, equal_stages
from torch_topoopt.search.starts.fitting import fits
from torch_topoopt.search.starts.split_layers import split_strategy
from torch_topoopt.search.strategies import (
    Memory,
    most_parts,
    samples_of_servers,
    whole_operators,
)
from torch_topoopt.search.strategy_space import check_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch_topoopt.op_graph import OpGraph, SplitDimension
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.starts.case import Named, StartCase
    from torch_topoopt.search.strategies import Strategy

_MOST_UNEQUAL = 6  # most stages with different numbers of servers
_WORTH = 0.02  # least gain for which stages get different numbers of servers
_STAGES = (2, 4, 8, 16)
_PARTS_OF_STAGES = (2, 4, 8, 16)


class PipelineStrategy(NamedTuple):
    """A strategy and the number of micro-batches it is for."""

    strategy: Strategy
    micro_batches: int


def pipeline(
    op_graph: OpGraph, cluster: Cluster, stages: int, micro_batches: int
) -> Strategy | None:
    """The pipeline whose slowest stage is fastest; None if there are too few cut points.

    Every stage shares its micro-batches among the same number of consecutive servers, by samples
    (as many of them as there are samples for). Only compute time of both passes counts.
    Raises ValueError if `stages` does not divide the servers, for micro-batches that do not fit the
    batch, and for an unknown accelerator.
    """
    if stages < 1 or cluster.servers % stages:
        raise ValueError(f"stages: {stages} does not divide {cluster.servers} servers")
    made = _Cutting(op_graph, cluster, micro_batches).equal(stages)
    if made is None:
        return None
    return _by_samples(op_graph, cluster, _blocks(op_graph, made), micro_batches)


# parameters: the planned problem, and its three degrees
def split_pipeline(
    op_graph: OpGraph,
    cluster: Cluster,
    stages: int,
    parts: int,
    micro_batches: int,
    dimensions: Collection[SplitDimension],
) -> Strategy | None:
    """`pipeline` with all parameters in `parts`, in pairs of layers, along `dimensions`.

    The three dimensions of Narayanan et al. 2021: the remaining servers of a stage share samples.
    None if there are too few cut points, or `parts` does not divide a stage's servers.
    Raises ValueError as `pipeline` does.
    """
    if stages < 1 or cluster.servers % stages:
        raise ValueError(f"stages: {stages} does not divide {cluster.servers} servers")
    made = _Cutting(op_graph, cluster, micro_batches).equal(stages)
    if made is None or (cluster.servers // stages) % parts:
        return None
    chosen = {i for i, operator in enumerate(op_graph.operators) if operator.parameter_bytes}
    samples = samples_of_servers(op_graph, cluster, micro_batches)
    return split_strategy(op_graph, _blocks(op_graph, made), parts, chosen, samples, dimensions)


class _Cutting:
    """Stages of `op_graph`, by compute time on a number of servers."""

    def __init__(self, op_graph: OpGraph, cluster: Cluster, micro_batches: int) -> None:
        self._op_graph, self._cluster = op_graph, cluster
        self._micro_batches = micro_batches
        self._cuts = cut_points(op_graph)
        self._seconds: dict[int, list[float]] = {}

    def seconds(self, width: int) -> list[float]:
        """The time of every operator when `width` servers share its samples."""
        if width not in self._seconds:
            cluster, count = self._cluster, self._micro_batches
            device = accelerator(cluster.accelerator)
            per_server = cluster.accelerators_per_server
            sample = most_parts(width, samples_of_servers(self._op_graph, cluster, count))
            self._seconds[width] = [
                sum(shard_cost(device, operator, Degrees(sample), per_server, count)[:2])
                for operator in self._op_graph.operators
            ]
        return self._seconds[width]

    def equal(self, stages: int) -> Stages | None:
        """Stages with equal numbers of servers."""
        width = self._cluster.servers // stages
        return equal_stages(self.seconds(width), self._cuts, width, stages)

    def all(self) -> list[Stages]:
        """Equal stages, for all numbers that divide the servers; and the best unequal ones, if
        predicted to be faster than each of them."""
        servers = self._cluster.servers
        widths = [k for k in range(1, servers) if servers % k == 0]
        equal = [made for k in widths if (made := self.equal(servers // k)) is not None]
        seconds = {width: self.seconds(width) for width in widths}
        unequal = [
            made
            for stages in range(2, min(servers, _MOST_UNEQUAL) + 1)
            if (made := any_stages(seconds, self._cuts, servers, stages)) is not None
        ]
        best_s = min(map(self._iteration_s, equal), default=float("inf"))
        faster = [made for made in unequal if self._iteration_s(made) < best_s * (1 - _WORTH)]
        return [*reversed(equal), *sorted(faster, key=self._iteration_s)[:1]]

    def _iteration_s(self, stages: Stages) -> float:
        """One micro-batch through all stages, the others through the slowest; moves are free."""
        return sum(stages.seconds) + stages.longest_s * (self._micro_batches - 1)


def _blocks(op_graph: OpGraph, stages: Stages) -> list[tuple[int, ...]]:
    """The servers of every operator's stage."""
    ends = list(itertools.accumulate(stages.widths))
    bounds = itertools.pairwise((0, *stages.cuts, len(op_graph.operators)))
    return [
        tuple(range(end - width, end))
        for end, width, (begin, stop) in zip(ends, stages.widths, bounds, strict=True)
        for _ in range(begin, stop)
    ]


def _by_samples(
    op_graph: OpGraph, cluster: Cluster, blocks: list[tuple[int, ...]], micro_batches: int
) -> Strategy:
    samples = samples_of_servers(op_graph, cluster, micro_batches)
    strategy = tuple(
        Placement(operator.name, block[: most_parts(len(block), samples)])
        for operator, block in zip(op_graph.operators, blocks, strict=True)
    )
    return check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)


def pipelines(
    op_graph: OpGraph,
    cluster: Cluster,
    micro_batches: Sequence[int],
    *,
    dimensions: Collection[SplitDimension] = (),
    optimizer_factor: float = 0.0,
) -> tuple[PipelineStrategy, ...]:
    """Pipelines for every number of `micro_batches` of the batch, as far as they fit into memory.

    Stages get equal numbers of servers, for all numbers that divide the servers. The best pipeline
    with unequal numbers is added if it is predicted to be faster than these.

    Two variants replace a stage that shares samples and does not fit. One has the fewest of the
    largest operators whole on one server of their stage. The other splits all parameters along
    `dimensions` into the fewest parts that fit.
    """
    found = []
    made = [
        (stages, count)
        for count in micro_batches
        if op_graph.batch_size % count == 0
        for stages in _Cutting(op_graph, cluster, count).all()
    ]
    for stages, count in made:
        blocks = _blocks(op_graph, stages)
        memory = partial(
            Memory, op_graph, cluster, micro_batches=count, optimizer_factor=optimizer_factor
        )
        plain = _by_samples(op_graph, cluster, blocks, count)
        if memory(degrees_of([plain])).fits(plain):
            found.append(PipelineStrategy(plain, count))
            continue
        whole = _with_whole_operators(op_graph, cluster, plain, blocks, memory)
        samples = samples_of_servers(op_graph, cluster, count)
        split = _with_split_parameters(op_graph, blocks, samples, dimensions, memory)
        found += [PipelineStrategy(made, count) for made in (whole, split) if made is not None]
    return tuple(found)


def _with_whole_operators(
    op_graph: OpGraph,
    cluster: Cluster,
    plain: Strategy,
    blocks: list[tuple[int, ...]],
    memory: Callable[[Collection[Degrees]], Memory],
) -> Strategy | None:
    """`plain` with 1, 2, 4, ... of the largest operators whole: the first that fits."""
    count = len(plain)
    sizes = [op.parameter_bytes + op.parameter_gradient_bytes for op in op_graph.operators]
    by_size = sorted((i for i in range(count) if sizes[i]), key=lambda i: (-sizes[i], i))
    room = memory({*degrees_of([plain]), Degrees(1)})
    for power in range(len(by_size).bit_length() + 1):
        chosen = by_size[: 2**power]
        strategy = whole_operators(op_graph, cluster, chosen, plain, blocks)
        if fits(room, strategy):
            return strategy
    return None


def _with_split_parameters(
    op_graph: OpGraph,
    blocks: list[tuple[int, ...]],
    samples: int,
    dimensions: Collection[SplitDimension],
    memory: Callable[[Collection[Degrees]], Memory],
) -> Strategy | None:
    """All parameters in the fewest parts that fit; their number divides a stage's servers."""
    chosen = {i for i, operator in enumerate(op_graph.operators) if operator.parameter_bytes}
    width = math.gcd(*map(len, blocks))  # a divisor of the servers of every stage
    for parts in range(2, width + 1):
        if dimensions and width % parts == 0:
            made = split_strategy(op_graph, blocks, parts, chosen, samples, dimensions)
            if fits(memory(degrees_of([made])), made):
                return made
    return None


def pipelines_of_stages(case: StartCase) -> Named:
    """Cuts at the narrowest tensors, with equal compute time; with micro-batches also with all
    layers split by parameters (Narayanan et al., 2021: three dimensions)."""
    problem = case.problem
    for stages in _STAGES:
        if problem.cluster.servers % stages == 0:
            arguments = problem.op_graph, problem.cluster, stages
            made = pipeline(*arguments, problem.micro_batches)
            if made is not None:
                yield f"{stages} stages", made
            for parts in _PARTS_OF_STAGES if made and problem.micro_batches > 1 else ():
                count, dimensions = problem.micro_batches, problem.dimensions
                split = split_pipeline(*arguments, parts, count, dimensions)
                if split is not None:
                    yield f"{stages} stages, layers in {parts} parts", split
