"""What the flows of a training iteration carry, for people who look at a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Ring
    from torch_topoopt.sim.iteration_tasks import IterationStep

_LISTED = 2  # names of operators in a name; more are counted


@dataclass(frozen=True)
class FlowName:
    """`what` a flow carries, of which `operators`; of an AllReduce also on which `ring` ("+1", or
    the order of its servers) and how many `steps` of it are this one flow."""

    what: Literal["AllReduce", "activations", "gradients"]
    operators: tuple[str, ...]
    ring: str = ""
    steps: int = 0
    iteration: int = 0

    def text(self, source: int, target: int) -> str:
        """As "AllReduce of fc1, ring +1: 0 -> 1"."""
        listed = ", ".join(self.operators[:_LISTED])
        more = len(self.operators) - _LISTED
        of = f"{listed} and {more} more" if more > 0 else listed
        ring = f", ring {self.ring}" if self.ring else ""
        return f"{self.what} of {of}{ring}: {source} -> {target}"


class StepNames:
    """Names of the flows of `steps`, which are those of one iteration of the named `operators`."""

    def __init__(
        self, steps: Sequence[IterationStep], operators: Sequence[str], micro_batches: int
    ) -> None:
        self._steps = steps
        self._operators = operators
        self._micro_batches = micro_batches
        self._known: dict[int, frozenset[tuple[int, bool]]] = {}

    def of_transfer(self, step: int) -> FlowName:
        """Of a step of kind "flow": what the operators before it have computed."""
        return self._name(step, "gradients" if self._is_backward(step) else "activations")

    def of_all_reduce(self, step: int, ring: Ring) -> FlowName:
        """Of a hop of `ring` in a step of kind "all_reduce"."""
        name = self._name(step, "AllReduce")
        return FlowName(name.what, name.operators, ring_text(ring), 2 * (len(ring.servers) - 1))

    def _name(self, step: int, what: Literal["AllReduce", "activations", "gradients"]) -> FlowName:
        numbers = sorted({operator for operator, _ in self._computed(step)})
        return FlowName(what, tuple(self._operators[number] for number in numbers))

    def _is_backward(self, step: int) -> bool:
        return any(backward for _, backward in self._computed(step))

    def _computed(self, number: int) -> frozenset[tuple[int, bool]]:
        """(operator, whether its backward pass) of the nearest computation before a step, or it."""
        step = self._steps[number]
        if step.kind == "compute":
            return frozenset({self._operator(step.priority)})
        if number not in self._known:
            before = [b for b in step.after if self._steps[b].kind != "flow"] or step.after
            self._known[number] = frozenset[tuple[int, bool]]().union(*map(self._computed, before))
        return self._known[number]

    def _operator(self, priority: int) -> tuple[int, bool]:
        """Undoes `priority` of csrc/sim/iteration/iteration_steps.h."""
        count, parts = len(self._operators), self._micro_batches
        if parts == 1:
            return (2 * count - priority, True) if priority > count else (priority, False)
        if priority <= parts * count:
            return -priority % count, True
        return priority % count, False


def ring_text(ring: Ring) -> str:
    """ "+3" for a ring on which every server sends to the one three further on among its members,
    else the order, as "0-2-1"."""
    place = {server: i for i, server in enumerate(sorted(ring.servers))}
    places = [place[server] for server in ring.servers]
    steps = {(b - a) % len(places) for a, b in zip(places, places[1:] + places[:1], strict=True)}
    return f"+{steps.pop()}" if len(steps) == 1 else "-".join(map(str, ring.servers))
