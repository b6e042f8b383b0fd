"""Limits on the work of rounds and descents.

They count operations, without a clock, so that the same arguments give the same plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# A search with more steps of the coarse simulator is large: some seconds of a processor.
LARGE_STEPS = 8e6


@dataclass(frozen=True)
class Effort:
    """Descents simulate about `tasks` tasks together, and begin at pairs that are less than the
    fraction `near` slower than the best. More than `failures` rounds with little gain, one after
    the other, are the last."""

    tasks: float = math.inf
    near: float = math.inf
    failures: float = math.inf


UNLIMITED = Effort()
# Large searches of mode best: these limits are to save time. Descents were most of the time of DLRM
# on 16 servers, and its descent on rings made the plan slower on schedules.
LARGE_ON_RINGS = Effort(tasks=0, failures=1)
LARGE_ON_SCHEDULES = Effort(tasks=60e6, near=0.01, failures=1)
