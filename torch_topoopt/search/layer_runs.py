"""Layers in runs, each on every second or fourth server.

Each run's AllReduce has servers of its own, so that all take a part of the time at once, where the
network carries rings of any servers alike. Strategies like this are among those that the authors of
TopoOpt published: in theirs of DLRM for links of 40 and 80 Gb/s, 22 of 46 AllReduces are among the
even or the odd servers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.search.strategies import most_parts

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.strategies import Strategy


def in_runs(
    op_graph: OpGraph, base: Strategy, servers: int, count: int, samples: int | None = None
) -> Strategy:
    """`base` with the operators that share samples on most servers in `count` runs, in the order of
    the graph: run k on servers k, k + count, ... or, evenly, on as many of them as have `samples`.

    An operator is in the run in which the middle of its parameters falls, if all are in a row.
    """
    most = max(len(placement.servers) for placement in base)
    shared = [
        operator.splittable and len(placement.servers) == most == placement.sample
        for operator, placement in zip(op_graph.operators, base, strict=True)
    ]
    width = servers // count
    parts = width if samples is None else most_parts(width, samples)
    sizes = [operator.parameter_bytes for operator in op_graph.operators]
    total = sum(size for size, of_run in zip(sizes, shared, strict=True) if of_run)
    before, placed = 0, []
    for size, placement, of_run in zip(sizes, base, shared, strict=True):
        if of_run:
            middle = before + size / 2
            run = min(count - 1, int(count * middle / total)) if total else 0
            before += size
            members = range(run, servers, count)[:: width // parts]
            placement = replace(placement, servers=tuple(members))
        placed.append(placement)
    return tuple(placed)
