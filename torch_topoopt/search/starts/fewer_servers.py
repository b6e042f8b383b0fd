"""Starts that use some of the servers, for models that exchange more than they compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.search.starts.case import groups_of, parameter_kinds
from torch_topoopt.search.starts.split_layers import split_strategy

if TYPE_CHECKING:
    from torch_topoopt.search.starts.case import Named, StartCase


def on_fewer_servers(case: StartCase) -> Named:
    """The whole model on every number of servers that divides theirs, by samples, or with the
    layers, tables or largest operators in parts."""
    op_graph, problem = case.problem.op_graph, case.problem
    layers = frozenset(i for i, o in enumerate(op_graph.operators) if o.parameter_bytes)
    chosen = {"layers": layers, **case.sets_of_operators()}
    count = len(op_graph.operators)
    for size in (1, *case.divisors[:-1]):
        splits = [
            (f"{label} in {parts} {kind}", parts, indices, kind)
            for parts in case.divisors
            if size % parts == 0
            for kind in parameter_kinds(case)
            for label, indices in chosen.items()
        ]
        for where, (group,) in groups_of(case, 1, size):
            for name, parts, indices, kind in [("samples", 1, layers, "columns"), *splits]:
                made = split_strategy(
                    *(op_graph, (group,) * count, parts, indices, case.samples),
                    *(problem.dimensions, kind),
                )
                yield f"{name} on {size} servers {where}", made
