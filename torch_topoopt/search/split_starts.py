"""Strategies to start from that split parameters, and positions where samples do not suffice.

What is split by columns is read by rows: a pair of layers, with what is elementwise between them,
moves nothing inside (Shoeybi et al., Megatron-LM, 2019, section 3). Everything else shares samples
and, where there are fewer of them than servers, positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import PARAMETER_KINDS, Degrees, Placement
from torch_topoopt.search.lowering import degrees_of, lower_ideal_switch, lower_job
from torch_topoopt.search.problem import MAX_TRANSFERS
from torch_topoopt.search.shards import is_even, may_split
from torch_topoopt.search.strategies import (
    Memory,
    heavy_operators,
    most_parts,
    samples_of_servers,
)
from torch_topoopt.search.traffic import transfer_count

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch_topoopt.op_graph import Operator, OpGraph, SplitDimension
    from torch_topoopt.plan import Cluster, ParameterKind
    from torch_topoopt.search.strategies import Executable, Strategy

_OFFERED = 2  # of all that fit, the cheapest
_MOST_TIMES = 10  # as many transfers, where nothing with fewer fits into memory
_NEAR = 1.25  # as much dearer than the cheapest other start, a split one is worth a look


def split_strategy(
    op_graph: OpGraph,
    servers: Sequence[tuple[int, ...]],
    parts: int,
    chosen: Collection[int],
    samples: int,
    dimensions: Collection[SplitDimension],
    first: ParameterKind = "columns",
) -> Strategy:
    """Operators `chosen`, by index, in `parts` of their parameters where they allow that.

    Operator i gets some of `servers[i]`, whose number `parts` divides; `samples` of them at most
    share samples. The splits follow `dimensions`. `first` is tried first: rows move
    more, but keep only their part of what they read.
    """
    order = sorted(PARAMETER_KINDS, key=lambda kind: kind != first)
    placed: list[Placement] = []
    for i, operator in enumerate(op_graph.operators):
        mine = servers[i]
        sample = most_parts(len(mine) // parts, samples)
        group = mine[: sample * parts]
        before = [placed[o.producer] for o in operator.operands if o.size_bytes]
        follows = bool(before) and all(
            p.servers == group and p.columns == parts > 1 for p in before
        )
        kinds = [kind for kind in order if kind in dimensions and parts > 1]
        kind = _parameter_kind(operator, i in chosen, follows, parts, kinds)
        if kind is not None:
            placed.append(Placement.of(operator.name, group, Degrees(sample, kind, parts)))
        else:
            placed.append(_spread(operator, mine, group, samples, "attribute" in dimensions))
    return tuple(placed)


def _parameter_kind(
    operator: Operator,
    chosen: bool,
    follows: bool,
    parts: int,
    kinds: Sequence[ParameterKind],
) -> ParameterKind | None:
    """Along which of `kinds`; `follows` says that its operands are split into columns already."""
    splits = {
        kind: split for kind in kinds if (split := operator.split(kind)) and is_even(split, parts)
    }
    if follows:
        rows, columns = splits.get("rows"), splits.get("columns")
        if chosen and rows is not None and rows.operands == "part":
            return "rows"
        if columns is not None and columns.operands == "part":
            return "columns"
    return next(iter(splits), None) if chosen else None


def _spread(
    operator: Operator,
    servers: tuple[int, ...],
    group: tuple[int, ...],
    samples: int,
    positions: bool,
) -> Placement:
    """On as many servers as its samples and positions allow."""
    if not operator.splittable:
        return Placement(operator.name, servers if len(servers) <= samples else servers[:1])
    for members in (servers, group):
        sample = most_parts(len(members), samples)
        degrees = Degrees(sample, attribute=len(members) // sample)
        if degrees.attribute == 1 or (positions and may_split(operator, degrees)):
            return Placement.of(operator.name, members, degrees)
    sample = most_parts(len(group), samples)
    return Placement(operator.name, group[:: len(group) // sample])


def split_starts(
    op_graph: OpGraph,
    cluster: Cluster,
    others: Sequence[Strategy],
    *,
    dimensions: Collection[SplitDimension],
    executable: Executable | None = None,
    max_transfers: int = MAX_TRANSFERS,
    micro_batches: int = 1,
    optimizer_factor: float = 0.0,
) -> tuple[Strategy, ...]:
    """Up to two strategies that fit into memory and are not much slower than `others`.

    All operators with parameters are split, or those whose gradients are more than what they read
    and make, into every number of parts that divides the servers; the fastest on an ideal switch
    are offered. All of it is `executable`. None makes more than `max_transfers` transfers between
    servers, one way; where there are no `others` and only such fit, the one with the fewest is
    offered, if these are no more than ten times as many. Raises ValueError if they are.
    """
    all_servers = (tuple(range(cluster.servers)),) * len(op_graph.operators)
    samples = samples_of_servers(op_graph, cluster, micro_batches)
    parameters = {i for i, op in enumerate(op_graph.operators) if op.parameter_bytes}
    ways: tuple[tuple[Collection[int], ParameterKind], ...] = (
        (parameters, "columns"),
        (heavy_operators(op_graph), "columns"),
        (parameters, "rows"),
    )
    found: dict[Strategy, None] = {}
    for parts in range(1, cluster.servers + 1):
        if cluster.servers % parts == 0:
            for chosen, first in ways:
                found.setdefault(
                    split_strategy(op_graph, all_servers, parts, chosen, samples, dimensions, first)
                )
    memory = Memory(
        op_graph,
        cluster,
        degrees_of([*found, *others]),
        micro_batches,
        optimizer_factor=optimizer_factor,
    )
    fitting = [
        strategy
        for strategy in found
        if strategy not in others
        and (executable is None or all(map(executable, strategy)))
        and memory.fits(strategy)
    ]
    fitting = _with_few_transfers(op_graph, cluster, fitting, max_transfers, bool(others))
    if not fitting:
        return ()
    job = lower_job(op_graph, cluster, degrees_of([*fitting, *others]), micro_batches=micro_batches)
    coarse = _core.CoarseSimulator(job, lower_ideal_switch(cluster))

    def seconds(strategy: Strategy) -> float:
        return coarse.run(strategy)

    timed = sorted((seconds(strategy), i) for i, strategy in enumerate(fitting))
    limit_s = min(map(seconds, others), default=float("inf")) * _NEAR
    return tuple(fitting[i] for time_s, i in timed[:_OFFERED] if time_s <= limit_s)


def _with_few_transfers(
    op_graph: OpGraph,
    cluster: Cluster,
    fitting: list[Strategy],
    max_transfers: int,
    has_others: bool,
) -> list[Strategy]:
    """Of `fitting` those with at most `max_transfers`; without others, else that with the fewest.

    Raises ValueError where that has too many to simulate.
    """
    counts = [transfer_count(op_graph, strategy) for strategy in fitting]
    few = [s for s, count in zip(fitting, counts, strict=True) if count <= max_transfers]
    if few or has_others or not fitting:
        return few
    fewest, most = min(counts), _MOST_TIMES * max_transfers
    if fewest > most:
        raise ValueError(
            f"transfers: {op_graph.model} fits into the memory of one {cluster.accelerator} only "
            f"where servers make {fewest} transfers, and no more than {most} are simulated; use a "
            "larger accelerator, fewer servers or a smaller batch"
        )
    return [fitting[counts.index(fewest)]]
