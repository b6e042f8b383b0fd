"""The cost of an all-to-all on moving circuits: the alpha-beta model and the switch's delay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class CircuitCosts:
    """A slot takes alpha + bytes x beta, a reconfiguration `reconfiguration_s`.

    `latency_s` is alpha, of one message over one hop; beta is 8 / (`link_gbps` 10^9) seconds per
    byte. As in the paper (section 2.1), the first topology counts as a reconfiguration. Of a job,
    the move back to the plan's circuits counts, too, unless it is `hidden`: made while ranks
    compute, or replaced by the first move of the next collective.
    """

    link_gbps: float
    latency_s: float
    reconfiguration_s: float
    hidden: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.link_gbps < math.inf:
            raise ValueError(f"bandwidth: {self.link_gbps:g} Gb/s is not a rate above 0")
        for name, value in (
            ("latency", self.latency_s),
            ("reconfiguration-delay", self.reconfiguration_s),
        ):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: {value:g} s is not a time from 0 on")

    @property
    def byte_s(self) -> float:
        """beta."""
        return 8e-9 / self.link_gbps

    def slot_s(self, chunk_bytes: float) -> float:
        """Seconds of one slot with chunks of at most so many bytes."""
        return self.latency_s + chunk_bytes * self.byte_s

    def moves(self, present: Sequence[bool]) -> int:
        """Those that ranks of a job wait for; `present` as of count_moves()."""
        return count_moves(present) - (self.hidden and not present[-1])

    def moving_s(self, present: Sequence[bool]) -> float:
        """Their seconds."""
        return self.moves(present) * self.reconfiguration_s

    def seconds(self, slots: int, reconfigurations: int, chunk_bytes: float) -> float:
        """Seconds of slots in which every link may carry `chunk_bytes`."""
        return reconfigurations * self.reconfiguration_s + slots * self.slot_s(chunk_bytes)


def count_moves(present: Iterable[bool]) -> int:
    """Moves from the plan's circuits through some topologies and back to the plan's circuits.

    `present` says of each topology whether the plan has its circuits.
    """
    return sum(not (before and after) for before, after in pairwise([True, *present, True]))
