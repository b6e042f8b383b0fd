"""The time of a rank in one training iteration: its own work, its operations, and waiting."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.plan.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_KINDS = 24  # operations in a RankWork, the longest ones
_SLOWER = 1.1  # a rank is reported from this multiple of the others' median


@dataclass(frozen=True)
class OperationTimes:
    """Calls of one collective among `ranks` ranks in an iteration: their number, and their mean
    `seconds` on the rank that waited least. A call's time begins when the calls before it in its
    group are over. `size_bytes` is the larger of inputs and outputs."""

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
    """The interquartile mean of `iterations` fully recorded iterations of a rank.

    Operations ran for `under_way_s` of its `seconds`; the training thread slept for `waiting_s` of
    these. None: not known, for example because an accelerator works while that thread sleeps.
    """

    rank: int
    server: int
    iterations: int
    seconds: float
    under_way_s: float
    waiting_s: float | None
    operations: tuple[OperationTimes, ...] = ()
    JSON_FIELDS: ClassVar = (
        "rank", "server", "iterations", "seconds", "under_way_s", "waiting_s", "own_s"
    )  # fmt: skip

    @property
    def own_s(self) -> float | None:
        """The time of an iteration without waiting for operations."""
        return None if self.waiting_s is None else self.seconds - self.waiting_s

    @property
    def hidden_part(self) -> float | None:
        """The fraction of the operations' time that overlaps with other work, from 0 to 1."""
        if self.waiting_s is None or self.under_way_s <= 0:
            return None
        return 1 - self.waiting_s / self.under_way_s


@dataclass(frozen=True)
class Slowest:
    """The rank with the longest own work; all others wait for it."""

    rank: int
    own_s: float
    median_s: float  # of the others

    def __str__(self) -> str:
        own, others = format_seconds(self.own_s), format_seconds(self.median_s)
        return f"rank {self.rank}: own work {own} of an iteration, the others {others} (median)"


def find_slowest(own_s: Mapping[int, float]) -> Slowest | None:
    """The slowest rank by seconds of own work; None unless it exceeds the median of the others by
    a tenth."""
    if len(own_s) < 2:
        return None
    rank = max(own_s, key=lambda r: own_s[r])
    median_s = statistics.median(seconds for other, seconds in own_s.items() if other != rank)
    if own_s[rank] <= _SLOWER * median_s:
        return None
    return Slowest(rank, own_s[rank], median_s)


def slowest_of(works: list[RankWork]) -> Slowest | None:
    """Like `find_slowest`, among the ranks whose own work is known."""
    return find_slowest({work.rank: work.own_s for work in works if work.own_s is not None})


def waited_least(works: list[RankWork]) -> RankWork:
    """The rank that waited least for others in its operations; `ranks` is not empty."""
    return min(works, key=lambda work: work.under_way_s)


def together(works: list[RankWork]) -> list[OperationTimes]:
    """The operations of all ranks, those that take most of an iteration first.

    Each has the time of the rank that waited least: the others' times include waiting for the last
    caller.
    """
    best: dict[tuple[str, int, int], OperationTimes] = {}
    for work in works:
        for one in work.operations:
            key = (one.name, one.ranks, one.size_bytes)
            if key not in best or one.seconds < best[key].seconds:
                best[key] = one
    return sorted(best.values(), key=lambda one: -one.per_iteration * one.seconds)


def hidden_part(works: list[RankWork]) -> float | None:
    """The median of the ranks' fractions; None if one of them is not known."""
    parts = [work.hidden_part for work in works]
    known = [part for part in parts if part is not None]
    return statistics.median(known) if known and len(known) == len(parts) else None
