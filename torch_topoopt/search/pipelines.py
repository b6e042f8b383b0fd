"""Pipelines to start from: the graph cut into stages of equal time, each on servers of its own.

A pipeline is a strategy whose stages are on disjoint servers, with more than one micro-batch. Its
schedule is 1F1B (csrc/sim/placements.h, microBatchesInFlight).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.shards import shard_cost
from torch_topoopt.search.strategies import Memory, starting_strategies
from torch_topoopt.search.strategy_space import check_strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Executable, Strategy


_HALVINGS = 60  # of the time that the longest stage may take


class Pipeline(NamedTuple):
    """A strategy and the number of micro-batches it is for."""

    strategy: Strategy
    micro_batches: int


def cut_points(op_graph: OpGraph) -> tuple[int, ...]:
    """Where a pipeline may be cut: before which operators only one tensor has to be handed over.

    At a cut point i, what operators 0..i-1 made and operators from i on read comes from at most one
    operator.
    """
    last_reader: dict[int, int] = {}
    for i, operator in enumerate(op_graph.operators):
        for operand in operator.operands:
            last_reader[operand.producer] = i
    open_until: dict[int, int] = {}  # producer -> last reader, of those that are still to be read
    cuts = []
    for i in range(1, len(op_graph.operators)):
        if i - 1 in last_reader:
            open_until[i - 1] = last_reader[i - 1]
        open_until = {producer: last for producer, last in open_until.items() if last >= i}
        if len(open_until) <= 1:
            cuts.append(i)
    return tuple(cuts)


def pipeline(
    op_graph: OpGraph, cluster: Cluster, stages: int, micro_batches: int
) -> Strategy | None:
    """The pipeline whose slowest stage is fastest; None if there are too few cut points.

    Every stage shares its micro-batches among the same number of consecutive servers, by samples.
    Time is what forward and backward pass compute. Raises ValueError if `stages` does not divide
    the servers, for micro-batches that do not fit the batch, and for an unknown accelerator.
    """
    if stages < 1 or cluster.servers % stages:
        raise ValueError(f"stages: {stages} does not divide {cluster.servers} servers")
    width = cluster.servers // stages
    device = accelerator(cluster.accelerator)
    seconds = [
        sum(
            shard_cost(
                device, operator, Degrees(width), cluster.accelerators_per_server, micro_batches
            )[:2]
        )
        for operator in op_graph.operators
    ]
    cuts = _balanced(seconds, cut_points(op_graph), stages)
    if cuts is None:
        return None
    blocks = [tuple(range(k * width, (k + 1) * width)) for k in range(stages)]
    bounds = itertools.pairwise((0, *cuts, len(op_graph.operators)))
    strategy = tuple(
        Placement(op_graph.operators[i].name, block)
        for block, (begin, end) in zip(blocks, bounds, strict=True)
        for i in range(begin, end)
    )
    return check_strategy(op_graph, cluster.servers, strategy, micro_batches=micro_batches)


def pipelines(
    op_graph: OpGraph,
    cluster: Cluster,
    micro_batches: Sequence[int],
    *,
    optimizer_factor: float = 0.0,
) -> tuple[Pipeline, ...]:
    """The pipelines of every number of stages that divides the servers and of every number of
    `micro_batches` that the batch allows, as far as they fit into the accelerators' memory."""
    found = []
    for stages, count in itertools.product(range(2, cluster.servers + 1), micro_batches):
        width = cluster.servers // stages
        if cluster.servers % stages or op_graph.batch_size % count:
            continue
        if op_graph.batch_size // count < width:
            continue
        strategy = pipeline(op_graph, cluster, stages, count)
        if strategy is None:
            continue
        memory = Memory(
            op_graph, cluster, {Degrees(width)}, count, optimizer_factor=optimizer_factor
        )
        if memory.fits(strategy):
            found.append(Pipeline(strategy, count))
    return tuple(found)


def planning_starts(
    op_graph: OpGraph,
    cluster: Cluster,
    executable: Executable | None = None,
    *,
    micro_batches: int = 1,
    optimizer_factor: float = 0.0,
) -> tuple[Strategy, ...]:
    """Where a search may start with that many micro-batches.

    Those of `starting_strategies` whose parts have a sample of every micro-batch and, with more
    than one micro-batch, the `pipelines` all of whose placements are `executable`. Raises
    ValueError if there are none.
    """
    if op_graph.batch_size % micro_batches:
        raise ValueError(
            f"micro_batches: {micro_batches} does not divide the batch of {op_graph.batch_size}"
        )
    found: tuple[Strategy, ...] = ()
    if micro_batches > 1:
        found = tuple(
            made.strategy
            for made in pipelines(
                op_graph, cluster, (micro_batches,), optimizer_factor=optimizer_factor
            )
            if executable is None or all(map(executable, made.strategy))
        )
    try:
        others = starting_strategies(
            op_graph,
            cluster,
            executable,
            micro_batches=micro_batches,
            optimizer_factor=optimizer_factor,
        )
    except ValueError:
        if not found:  # else nothing but pipelines fits into memory
            raise
        others = ()
    samples = op_graph.batch_size // micro_batches
    fitting = [start for start in others if all(p.sample <= samples for p in start)]
    if not fitting and not found:
        raise ValueError(
            f"micro_batches: {micro_batches} of {samples} samples are too small for every strategy "
            f"to start from on {cluster.servers} servers; use fewer"
        )
    return tuple(dict.fromkeys((*fitting, *found)))


def _balanced(
    seconds: Sequence[float], cuts: tuple[int, ...], stages: int
) -> tuple[int, ...] | None:
    """The `stages` - 1 of `cuts` whose longest stage is shortest, to the last bits of a float."""
    if len(cuts) < stages - 1:
        return None
    until = list(itertools.accumulate(seconds, initial=0.0))
    found = _cuts_within(until[-1], until, cuts, stages)
    low, high = 0.0, until[-1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        shorter = _cuts_within(middle, until, cuts, stages)
        if shorter is None:
            low = middle
        else:
            found, high = shorter, middle
    return found


def _cuts_within(
    longest_s: float, until: Sequence[float], cuts: tuple[int, ...], stages: int
) -> tuple[int, ...] | None:
    """`stages` - 1 cuts with every stage as long as `longest_s` lets it be; None without any."""
    chosen: list[int] = []
    begin = at = 0
    for left in range(stages - 1, 0, -1):  # cuts that are still to be made, and one each to spare
        fitting = at
        while fitting <= len(cuts) - left and until[cuts[fitting]] - until[begin] <= longest_s:
            fitting += 1
        if fitting == at:
            return None
        begin = cuts[fitting - 1]
        chosen.append(begin)
        at = fitting
    return tuple(chosen) if until[-1] - until[begin] <= longest_s else None
