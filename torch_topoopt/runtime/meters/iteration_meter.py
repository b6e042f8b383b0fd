"""The cost of one training iteration on this rank: seconds, and bytes per link.

An iteration ends when the optimizer has stepped (of several, the first that ever did). Every later
message carries the number of the next iteration, and links count bytes by that number. So the
count includes bytes that a relay still holds at the end of the iteration. Differences of plain
counters would depend on the distance of the servers.

Bytes are means over the iterations in which this rank did not itself send far more than usual:
those with a one-time message, a test or a checkpoint are excluded. Nothing is excluded by a link's
bytes: with several routes per pair, each message takes one of them, so that only several iterations
together load the links evenly. Seconds are the mean of the middle half. The first two iterations do
not count, since memory is still being allocated, and buckets are made.
"""

from __future__ import annotations

import itertools
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WARM_UP_ITERATIONS = 2  # at least 1: the time before the first end is not an iteration
MOST_ITERATIONS = 20_000  # remembered iterations: the last ones


@dataclass(frozen=True)
class Iterations:
    """Means over `count` iterations; `link_bytes[i]` are the bytes of link i in one of them."""

    count: int
    seconds: float
    link_bytes: tuple[float, ...]


class IterationMeter:
    """Notes the end of every iteration.

    `begin()` numbers all later messages for the next one, and returns its number. `sent(first,
    count)` returns the bytes of each of `count` iterations from `first` on: of this rank's own
    messages, and of every link. `ended(number)` is called when `number` iterations are over.
    """

    def __init__(
        self,
        begin: Callable[[], int],
        sent: Callable[[int, int], tuple[list[int], list[list[int]]]],
        clock: Callable[[], float] = time.perf_counter,
        ended: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._begin = begin
        self._sent = sent
        self._clock = clock
        self._ended = ended
        self._optimizer: Any = None
        self._ends: list[tuple[float, int]] = []  # the time, and the next iteration's number
        self.first_ended_s: float | None = None  # since the epoch: the end of start-up
        self.ended_count = 0

    def install(self) -> Callable[[], None]:
        """Watches all optimizers of this process; returns the function that ends it."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        handle = register_optimizer_step_post_hook(lambda optimizer, *_: self.stepped(optimizer))
        stop: Callable[[], None] = handle.remove
        return stop

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped: an iteration ends if it is the watched one."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            self._ends.clear()
        if self.first_ended_s is None:
            self.first_ended_s = time.time()
        if self._optimizer() is optimizer:
            number = self._begin()
            self._ends.append((self._clock(), number))
            self.ended_count += 1
            del self._ends[:-MOST_ITERATIONS]
            self._ended(number)

    def result(self) -> Iterations | None:
        """The means; None after too few iterations. Call it when all links are idle."""
        ends = self._ends[WARM_UP_ITERATIONS:]
        if len(ends) < 2:
            return None
        seconds = [after - before for (before, _), (after, _) in itertools.pairwise(ends)]
        own, links = self._sent(ends[0][1], len(seconds))
        most = _fence(own)
        usual = [i for i, size in enumerate(own) if size <= most]
        link_bytes = tuple(sum(of_link[i] for i in usual) / len(usual) for of_link in links)
        return Iterations(len(seconds), _middle(seconds), link_bytes)


def _fence(values: Sequence[int]) -> int:
    """The limit of outliers: three times the distance of the quartiles above the upper one.

    Source: Tukey, "Exploratory Data Analysis" (1977), section 2C, outer fences.
    """
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return high + 3 * (high - low)


def _middle(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    kept = ordered[quarter : len(ordered) - quarter]
    return sum(kept) / len(kept)
