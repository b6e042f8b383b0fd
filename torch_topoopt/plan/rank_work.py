"""What a rank did in one training iteration: its own work, its operations, and waiting for them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_KINDS = 24  # of operations in a RankWork, those that take most time
_SLOWER = 1.1  # times the median of the others: a rank that is named


@dataclass(frozen=True)
class OperationTimes:
    """Calls of one collective, of `size_bytes` (the larger of its inputs and outputs) among `ranks`
    ranks: how many there were in an iteration, and the mean `seconds` from the moment at which
    those before it in its group were over to its end, on the rank that waited least for others."""

    name: str
    ranks: int
    size_bytes: int
    per_iteration: float
    seconds: float

    @property
    def algorithm_gbps(self) -> float | None:
        """Size / time, in Gb/s; nccl-tests' algbw is this / 8, in GB/s. None: it took no time."""
        return self.size_bytes * 8e-9 / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class RankWork:
    """One of `iterations` iterations of a rank, those of which it remembers every operation.

    It took `seconds`; for `under_way_s` of them operations were under way, and for `waiting_s` of
    these the thread that trains slept. None: not known, as where tensors are on an accelerator,
    whose work goes on while that thread sleeps.
    """

    rank: int
    server: int
    iterations: int
    seconds: float
    under_way_s: float
    waiting_s: float | None
    operations: tuple[OperationTimes, ...] = ()

    @property
    def own_s(self) -> float | None:
        """Of an iteration, without waiting for operations."""
        return None if self.waiting_s is None else self.seconds - self.waiting_s

    @property
    def hidden_part(self) -> float | None:
        """The part of the time of operations in which the rank did something else, from 0 to 1."""
        if self.waiting_s is None or self.under_way_s <= 0:
            return None
        return 1 - self.waiting_s / self.under_way_s


@dataclass(frozen=True)
class Slowest:
    """The rank whose own work takes longest, for which all others wait."""

    rank: int
    own_s: float
    median_s: float  # of the others

    def __str__(self) -> str:
        own, others = format_seconds(self.own_s), format_seconds(self.median_s)
        return f"rank {self.rank}: own work {own} of an iteration, the others {others} (median)"


def find_slowest(own_s: Mapping[int, float]) -> Slowest | None:
    """Of rank -> seconds of own work; None where no rank is a tenth slower than the median of the
    others, or there are no others."""
    if len(own_s) < 2:
        return None
    rank = max(own_s, key=lambda r: own_s[r])
    median_s = statistics.median(seconds for other, seconds in own_s.items() if other != rank)
    if own_s[rank] <= _SLOWER * median_s:
        return None
    return Slowest(rank, own_s[rank], median_s)


def slowest_of(works: list[RankWork]) -> Slowest | None:
    """As `find_slowest`, of the ranks whose own work is known."""
    return find_slowest({work.rank: work.own_s for work in works if work.own_s is not None})


def waited_least(works: list[RankWork]) -> RankWork:
    """The rank that waited least for others in its operations; there is one at least."""
    return min(works, key=lambda work: work.under_way_s)


def together(works: list[RankWork]) -> list[OperationTimes]:
    """The operations of all ranks, those that take most of an iteration first.

    Each with the time of the rank that waited least in it: the others' has the lateness of the last
    to call in it.
    """
    best: dict[tuple[str, int, int], OperationTimes] = {}
    for work in works:
        for one in work.operations:
            key = (one.name, one.ranks, one.size_bytes)
            if key not in best or one.seconds < best[key].seconds:
                best[key] = one
    return sorted(best.values(), key=lambda one: -one.per_iteration * one.seconds)


def hidden_part(works: list[RankWork]) -> float | None:
    """The median of the ranks' parts; None where one of them is not known."""
    parts = [work.hidden_part for work in works]
    known = [part for part in parts if part is not None]
    return statistics.median(known) if known and len(known) == len(parts) else None
