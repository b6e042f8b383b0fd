"""Pipelines to start from: the graph cut into stages of equal time, each on servers of its own.

A pipeline is a strategy whose stages are on disjoint servers, with more than one micro-batch. Its
schedule is 1F1B (csrc/sim/placements.h, microBatchesInFlight).
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.lowering import degrees_of
from torch_topoopt.search.shards import shard_cost
from torch_topoopt.search.split_starts import split_starts, split_strategy
from torch_topoopt.search.strategies import (
    Memory,
    most_parts,
    samples_of_servers,
    starting_strategies,
    whole_operators,
)
from torch_topoopt.search.strategy_space import check_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch_topoopt.op_graph import OpGraph, SplitDimension
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

    Every stage shares its micro-batches among the same number of consecutive servers, by samples
    (as many of them as there are samples for). Time is what forward and backward pass compute.
    Raises ValueError if `stages` does not divide the servers, for micro-batches that do not fit the
    batch, and for an unknown accelerator.
    """
    blocks = _stage_servers(op_graph, cluster, stages, micro_batches)
    return None if blocks is None else _by_samples(op_graph, cluster, blocks, micro_batches)


def _stage_servers(
    op_graph: OpGraph, cluster: Cluster, stages: int, micro_batches: int
) -> list[tuple[int, ...]] | None:
    """The servers of every operator's stage; None if there are too few cut points."""
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
    return [
        block for block, (begin, end) in zip(blocks, bounds, strict=True) for _ in range(begin, end)
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
) -> tuple[Pipeline, ...]:
    """The pipelines of every number of stages that divides the servers and of every number of
    `micro_batches` that the batch allows, as far as they fit into the accelerators' memory.

    Where a stage that shares samples does not fit: with the fewest of the largest operators whole
    on one server of their stage, and with all parameters split, along `dimensions`, into as few
    parts as fit.
    """
    found = []
    for stages, count in itertools.product(range(2, cluster.servers + 1), micro_batches):
        if cluster.servers % stages or op_graph.batch_size % count:
            continue
        blocks = _stage_servers(op_graph, cluster, stages, count)
        if blocks is None:
            continue
        memory = partial(
            Memory, op_graph, cluster, micro_batches=count, optimizer_factor=optimizer_factor
        )
        plain = _by_samples(op_graph, cluster, blocks, count)
        if memory(degrees_of([plain])).fits(plain):
            found.append(Pipeline(plain, count))
            continue
        whole = _with_whole_operators(op_graph, cluster, plain, blocks, memory)
        samples = samples_of_servers(op_graph, cluster, count)
        split = _with_split_parameters(op_graph, blocks, samples, dimensions, memory)
        found += [Pipeline(made, count) for made in (whole, split) if made is not None]
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
        if _fits(room, strategy):
            return strategy
    return None


def _with_split_parameters(
    op_graph: OpGraph,
    blocks: list[tuple[int, ...]],
    samples: int,
    dimensions: Collection[SplitDimension],
    memory: Callable[[Collection[Degrees]], Memory],
) -> Strategy | None:
    """All parameters in as few parts as fit, of the numbers that divide a stage's servers."""
    chosen = {i for i, operator in enumerate(op_graph.operators) if operator.parameter_bytes}
    width = len(blocks[0])
    for parts in range(2, width + 1):
        if dimensions and width % parts == 0:
            made = split_strategy(op_graph, blocks, parts, chosen, samples, dimensions)
            if _fits(memory(degrees_of([made])), made):
                return made
    return None


def _fits(memory: Memory, strategy: Strategy) -> bool:
    try:
        return memory.fits(strategy)
    except ValueError:  # servers of one stage would wait for each other
        return False


def planning_starts(
    op_graph: OpGraph,
    cluster: Cluster,
    executable: Executable | None = None,
    *,
    dimensions: Collection[SplitDimension] = (),
    micro_batches: int = 1,
    optimizer_factor: float = 0.0,
) -> tuple[Strategy, ...]:
    """Where a search may start with that many micro-batches, all of it `executable`.

    Those of `starting_strategies`; with more than one micro-batch, `pipelines`; and, along
    `dimensions`, `split_starts`. Raises ValueError if there are none.
    """
    if op_graph.batch_size % micro_batches:
        raise ValueError(
            f"micro_batches: {micro_batches} does not divide the batch of {op_graph.batch_size}"
        )
    found: list[Strategy] = []
    problem = None
    try:
        found += starting_strategies(
            op_graph,
            cluster,
            executable,
            micro_batches=micro_batches,
            optimizer_factor=optimizer_factor,
        )
    except ValueError as error:
        problem = error  # else nothing but what follows fits into memory
    if micro_batches > 1:
        found += (
            made.strategy
            for made in pipelines(
                op_graph,
                cluster,
                (micro_batches,),
                dimensions=dimensions,
                optimizer_factor=optimizer_factor,
            )
        )
    if dimensions and cluster.servers > 1:
        found += split_starts(
            op_graph,
            cluster,
            found,
            dimensions=dimensions,
            executable=executable,
            micro_batches=micro_batches,
            optimizer_factor=optimizer_factor,
        )
    samples = op_graph.batch_size // micro_batches
    fitting = [
        start
        for start in found
        if all(p.sample <= samples for p in start)
        and (executable is None or all(map(executable, start)))
    ]
    if fitting:
        return tuple(dict.fromkeys(fitting))
    if problem is not None:
        raise problem
    raise ValueError(
        f"micro_batches: {micro_batches} of {samples} samples are too small for every strategy "
        f"to start from on {cluster.servers} servers; use fewer"
    )


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
