"""Starts with each branch of a model (towers, tables, encoders) on servers of its own
(Dean et al., DistBelief, 2012)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.search.starts.case import groups_of

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.search.starts.case import Named, StartCase


def branches(op_graph: OpGraph) -> tuple[tuple[int, ...], ...]:
    """The operators before the first that joins two branches, by branch: indices in order.

    An operator without operands begins a branch; one with a single branch as operand extends it.
    One with several joins them; it and its successors are on no branch.
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


def branches_apart(case: StartCase) -> Named:
    """Each branch with parameters on a group of its own, as large as possible, so that all
    branches sum their gradients at the same time."""
    operators = case.problem.op_graph.operators
    found = [
        branch
        for branch in branches(case.problem.op_graph)
        if any(operators[i].parameter_bytes for i in branch)
    ]
    size = case.problem.cluster.servers // max(1, len(found))
    if len(found) < 2 or size < 2:  # whole tables are spread by `operators_apart.spread`
        return
    size = min(size, case.samples)
    for where, groups in groups_of(case, len(found), size):
        group_of = {i: groups[k] for k, branch in enumerate(found) for i in branch}
        yield (
            f"{len(found)} branches on groups of {size} servers {where}",
            tuple(
                Placement.of(placement.operator, group_of[i], Degrees(size))
                if i in group_of and operators[i].splittable
                else placement
                for i, placement in enumerate(case.base)
            ),
        )
