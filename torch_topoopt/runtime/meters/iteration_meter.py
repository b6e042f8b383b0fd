"""The cost of one training iteration on this rank: seconds, and bytes per link.

An iteration ends when the optimizer has stepped (of several, the first that ever did). From then on
every message carries the number of the next one, and links count bytes by that number. So the bytes
of an iteration are those that its operations sent, wherever a relay still holds them at its end;
what a reading of plain counters would give depends on how far the servers are apart.

What is summed up over a run would also hold what is sent only once, or in a test or checkpoint
between two iterations. So bytes are means over the iterations in which this rank did not itself
send far more than usual. The mean, and nothing left out by what a link carried: where a pair has
several routes, each message takes one of them, and only several iterations together load the links
evenly. Seconds are the mean of the middle half. The first two iterations are not counted: memory is
still being taken, and buckets are made.
"""

from __future__ import annotations

import itertools
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WARM_UP_ITERATIONS = 2  # and not less than 1: the time before the first end is no iteration
MOST_ITERATIONS = 20_000  # iterations that are remembered: the last ones


@dataclass(frozen=True)
class Iterations:
    """`count` iterations were measured; `link_bytes[i]` is what link i sent in one of them."""

    count: int
    seconds: float
    link_bytes: tuple[float, ...]


class IterationMeter:
    """Notes the end of every iteration.

    `begin()` begins the next one for all that is sent, and returns its number. `sent(first, count)`
    gives the bytes of each of `count` iterations from `first` on: of this rank's own messages, and
    for every link of all that it sent. `ended(number)` is called when `number` iterations are over.
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
        self._ends: list[tuple[float, int]] = []  # when, and the number of what begins there
        self.first_ended_s: float | None = None  # since the epoch: when training had started up
        self.ended_count = 0

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
        if self.first_ended_s is None:
            self.first_ended_s = time.time()
        if self._optimizer() is optimizer:
            number = self._begin()
            self._ends.append((self._clock(), number))
            self.ended_count += 1
            del self._ends[:-MOST_ITERATIONS]
            self._ended(number)

    def result(self) -> Iterations | None:
        """None if fewer iterations ended than one can be measured by.

        To be called when all links have come to rest.
        """
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
