"""From a strategy to what it asks of the network: AllReduce and MP bytes (paper section 2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Demand, GroupDemand, PairDemand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Placement


def overlaps(a: int, b: int) -> Iterator[tuple[int, int, int]]:
    """Which shards of a batch split `a` ways share samples with which of one split `b` ways.

    The i-th of k shards holds samples [i/k, (i+1)/k). Yields (shard of a, shard of b, parts),
    ascending, `parts` in units of 1 / (a b) of the batch.
    """
    i = j = 0
    while i < a and j < b:
        parts = min((i + 1) * b, (j + 1) * a) - max(i * b, j * a)
        if parts > 0:
            yield i, j, parts
        if (i + 1) * b <= (j + 1) * a:
            i += 1
        else:
            j += 1


def transfers(
    producer: tuple[int, ...], consumer: tuple[int, ...]
) -> Iterator[tuple[int, int, int]]:
    """What moves when a tensor shared by the servers `producer` is needed by those of `consumer`.

    Both are ascending; the i-th of k servers holds samples [i/k, (i+1)/k) of the batch. Yields
    (source, target, parts), `parts` in units of 1 / (len(producer) x len(consumer)) of the batch,
    only where source and target differ.
    """
    for i, j, parts in overlaps(len(producer), len(consumer)):
        if producer[i] != consumer[j]:
            yield producer[i], consumer[j], parts


def demand(op_graph: OpGraph, placements: Sequence[Placement], servers: int) -> Demand:
    """What one iteration of `op_graph` under `placements` asks of a cluster of `servers`.

    One group per server set of at least two, with the summed gradients of all operators on it, and
    one pair per (source, target) with activations sent forward and gradients sent back, in bytes.
    Groups are in descending order of bytes, pairs in ascending order of servers.
    """
    groups: dict[tuple[int, ...], int] = {}
    pairs: dict[tuple[int, int], float] = {}
    for operator, placement in zip(op_graph.operators, placements, strict=True):
        mine = placement.servers
        if not all(0 <= server < servers for server in mine):
            raise ValueError(f"{placement.operator}: {list(mine)} is not within 0..{servers - 1}")
        if len(mine) > 1 and operator.parameter_gradient_bytes:
            groups[mine] = groups.get(mine, 0) + operator.parameter_gradient_bytes
        for operand in operator.operands:
            theirs = placements[operand.producer].servers
            if theirs == mine:
                continue
            unit = 1 / (len(theirs) * len(mine))
            for source, target, parts in transfers(theirs, mine):
                for pair, size in (
                    ((source, target), operand.size_bytes),
                    ((target, source), operand.gradient_bytes),
                ):
                    if size:
                        pairs[pair] = pairs.get(pair, 0.0) + parts * unit * size
    return Demand(
        groups=tuple(
            GroupDemand(members, size)
            for members, size in sorted(groups.items(), key=lambda item: (-item[1], item[0]))
        ),
        pairs=tuple(
            PairDemand(source, target, max(1, round(size)))
            for (source, target), size in sorted(pairs.items())
        ),
    )
