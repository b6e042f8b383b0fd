"""Results of possible changes, computed in advance.

A result belongs to one state and one change of it. States are nodes of a tree: the current state,
and its successors by changes with known results. A change in the tree leads to that node, any other
one to a new tree. So a result never applies to another state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt import _core


class Operation(NamedTuple):
    """What a change does to a `_core.PathAssignment`, as `_core.AssignmentChange`: flows that end,
    kinds of flows that start, (flow, kind) that change, all links that are dead from now on."""

    ended: tuple[int, ...] = ()
    started: tuple[int, ...] = ()
    kinds: tuple[tuple[int, int], ...] = ()
    dead: tuple[int, ...] | None = None


@dataclass
class StateNode:
    """A state, and the results of changes of it with the states that they lead to."""

    after: dict[Operation, tuple[_core.AssignmentResult, StateNode]] = field(default_factory=dict)


class Precomputed:
    """The tree; it also counts hits and misses."""

    def __init__(self) -> None:
        self.node = StateNode()
        self.hits = 0
        self.misses = 0

    def take(self, operation: Operation) -> _core.AssignmentResult | None:
        """The result of this change of the current state; its successor becomes the current one."""
        result, self.node = self.node.after.get(operation, (None, StateNode()))
        self.hits += result is not None
        self.misses += result is None
        return result

    def forget(self) -> None:
        self.node = StateNode()

    def size(self) -> int:
        """The number of stored results."""
        count = 0
        nodes = [self.node]
        while nodes:
            after = nodes.pop().after
            count += len(after)
            nodes += [node for _, node in after.values()]
        return count
