"""What one training iteration takes on this rank: seconds, and bytes per link.

An iteration ends when the optimizer has stepped (of several, the first that ever did). At each end
the counters of the links are read; what is summed up over a run would also hold what is sent only
once. So the figures are means of the middle half of all iterations, which leaves out what a test
or a checkpoint between two of them adds. The first two are not counted: memory is still being
taken, and buckets are made.
"""

from __future__ import annotations

import itertools
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LEFT_OUT = 2
_MOST = 20_000  # iterations that are remembered: the last ones


@dataclass(frozen=True)
class Iterations:
    """`count` iterations were measured; `link_bytes[i]` is what link i sent in one of them."""

    count: int
    seconds: float
    link_bytes: tuple[float, ...]


class IterationMeter:
    """Notes the end of every iteration; `counters` gives the bytes that every link has sent."""

    def __init__(
        self, counters: Callable[[], list[int]], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._counters = counters
        self._clock = clock
        self._optimizer: Any = None
        self._ends: list[tuple[float, list[int]]] = []

    def install(self) -> Callable[[], None]:
        """Watches all optimizers of this process; returns what ends that."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        handle = register_optimizer_step_post_hook(lambda optimizer, *_: self.stepped(optimizer))
        stop: Callable[[], None] = handle.remove
        return stop

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped: an iteration ends if it is the one that counts."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            self._ends.clear()
        if self._optimizer() is optimizer:
            self._ends.append((self._clock(), self._counters()))
            del self._ends[:-_MOST]

    def result(self) -> Iterations | None:
        """None if fewer iterations ended than one can be measured by."""
        ends = self._ends[_LEFT_OUT:]
        if len(ends) < 2:
            return None
        pairs = list(itertools.pairwise(ends))
        seconds = [after - before for (before, _), (after, _) in pairs]
        links = len(ends[0][1])
        sent = [[after[i] - before[i] for (_, before), (_, after) in pairs] for i in range(links)]
        return Iterations(len(pairs), _middle(seconds), tuple(map(_middle, sent)))


def _middle(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    kept = ordered[quarter : len(ordered) - quarter]
    return sum(kept) / len(kept)
