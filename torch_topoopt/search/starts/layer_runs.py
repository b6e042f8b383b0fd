"""Layers in runs, each on every second or fourth server.

The AllReduces of different runs use different servers, so that they overlap, provided the network
carries rings of any servers alike. The authors of TopoOpt published such strategies: in theirs of
DLRM for links of 40 and 80 Gb/s, 22 of 46 AllReduces are among the even or the odd servers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.plan import Degrees
from torch_topoopt.search.shards import may_split
from torch_topoopt.search.starts.case import groups_of, parameter_kinds, placed_on
from torch_topoopt.search.strategies import most_parts, whole_operators

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.starts.case import Named, StartCase
    from torch_topoopt.search.strategies import Strategy

_RUNS = (2, 4)
_APART_FROM_RUNS = ("heavy operators", "tables")
_PARTS_APART_FROM_RUNS = (2, 4)


def in_runs(
    op_graph: OpGraph, base: Strategy, servers: int, count: int, samples: int | None = None
) -> Strategy:
    """`base` with the operators that share samples on most servers in `count` runs, in the order of
    the graph: run k on servers k, k + count, ... or, evenly, on as many of them as have `samples`.

    An operator belongs to the run that contains the middle of its parameters, all laid in a row.
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


def layers_in_runs(case: StartCase) -> Named:
    """Layers in runs on every second or fourth server; tables whole, by bytes or one on each
    server, or in parts at equal distances."""
    servers = case.problem.cluster.servers
    for name, base in (("layers", case.base), *_apart_from_runs(case)):
        for count in _RUNS:
            if servers % count == 0:
                placed = in_runs(case.problem.op_graph, base, servers, count, case.samples)
                yield f"{name} in {count} runs", placed


def _apart_from_runs(case: StartCase) -> Named:
    """`base` with tables, or all operators whose AllReduce is large, on servers of their own."""
    op_graph, cluster = case.problem.op_graph, case.problem.cluster
    for label, chosen in case.sets_of_operators().items():
        if label not in _APART_FROM_RUNS:
            continue
        stride = max(1, cluster.servers // len(chosen))
        slots = tuple(range(0, cluster.servers, stride))
        for way, homes in (("by bytes", None), (f"with stride {stride}", slots)):
            each = None if homes is None else (homes,) * len(case.base)
            placed = whole_operators(op_graph, cluster, chosen, case.base, each)
            yield f"{label} whole {way}, layers", placed
        for kind in parameter_kinds(case):
            for parts in _PARTS_APART_FROM_RUNS:
                degrees = Degrees(1, kind, parts)
                possible = all(may_split(op_graph.operators[i], degrees) for i in chosen)
                if possible and cluster.servers % parts == 0:
                    *_, (where, groups) = groups_of(case, len(chosen), parts)
                    placed = placed_on(case, chosen, groups, degrees)
                    yield f"{label} in {parts} {kind} {where}, layers", placed
