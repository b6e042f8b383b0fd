"""The branches of a model that nothing joins yet: towers, tables, encoders beside one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph


def branches(op_graph: OpGraph) -> tuple[tuple[int, ...], ...]:
    """The operators before the first that joins two branches, by branch: indices in order.

    An operator that reads nothing begins a branch; one that reads a single branch goes on with it;
    one that reads several joins them, and neither it nor what follows it is on any.
    """
    branch_of: dict[int, int | None] = {}
    for i, operator in enumerate(op_graph.operators):
        read = {branch_of[operand.producer] for operand in operator.operands}
        branch_of[i] = i if not read else read.pop() if len(read) == 1 else None
    found: dict[int, list[int]] = {}
    for i, branch in branch_of.items():
        if branch is not None:
            found.setdefault(branch, []).append(i)
    return tuple(map(tuple, found.values()))
