"""Names of a training iteration's flows, for readers of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.plan.network import stride_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt import _core

FlowKind = Literal[
    "AllReduce", "AllGather", "ReduceScatter", "AllToAll", "activations", "gradients"
]
_LISTED = 2  # names of operators in a name; more are counted


@dataclass(frozen=True)
class FlowName:
    """The content `what` of a flow and its `operators`. An AllReduce also has its `ring` ("+1", or
    the order of servers, always so for a row or column) and the number of `steps` in this flow. The
    collectives of a layout have a `content`, such as "parameters"."""

    what: FlowKind
    operators: tuple[str, ...]
    ring: str = ""
    steps: int = 0
    iteration: int = 0
    content: str = ""

    def text(self, source: int, target: int) -> str:
        """As "AllReduce of fc1, ring +1: 0 -> 1"."""
        listed = ", ".join(self.operators[:_LISTED])
        more = len(self.operators) - _LISTED
        of = f"{listed} and {more} more" if more > 0 else listed
        ring = f", ring {self.ring}" if self.ring else ""
        content = f" of {self.content}" if self.content else ""
        return f"{self.what}{content} of {of}{ring}: {source} -> {target}"


def flow_name(cargo: _core.Cargo, operators: Sequence[str], iteration: int) -> FlowName:
    """The name of flows that carry `cargo` in an iteration of the named `operators`."""
    names = tuple(operators[number] for number in cargo.operators)
    if not cargo.ring:
        return FlowName(cargo.kind, names, iteration=iteration)
    ring = "-".join(map(str, cargo.ring)) if cargo.is_line else ring_text(cargo.ring)
    return FlowName(cargo.kind, names, ring, cargo.steps, iteration)


def ring_text(order: Sequence[int]) -> str:
    """ "+3" if every server sends to the third next of the ring's sorted members; else the order,
    such as "0-2-1"."""
    stride = stride_of(order)
    return "-".join(map(str, order)) if stride is None else f"+{stride}"
