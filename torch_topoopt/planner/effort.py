"""Limits on the work of descents.

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
    fraction `near` slower than the best."""

    tasks: float = math.inf
    near: float = math.inf


UNLIMITED = Effort()
# Large searches of mode best: descents on rings gain little on schedules, and those from much
# slower pairs seldom end below the others.
LARGE_ON_RINGS = Effort(tasks=0)
LARGE_ON_SCHEDULES = Effort(tasks=60e6, near=0.01)
