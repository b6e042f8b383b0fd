"""How long tests may wait: limits are those of an idle machine, stretched to what this one gives.

Only limits scale, which end what hangs. No test asserts on time.
"""

from __future__ import annotations

import os
import time
from functools import cache

_LOOPS = 200_000
_USUAL_S = 0.02  # processor time of these loops on the machine that limits are written for
_MOST = 12.0  # what hangs must still end


def limit_s(idle_s: float) -> float:
    """Seconds for something that takes at most `idle_s` where nothing else runs."""
    return idle_s * slowness()


def slowness() -> float:
    """How many times longer than on an idle machine things take here and now; at least 1."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(_MOST, max(1.0, waiting) * _processor())


@cache
def _processor() -> float:
    """How many times more of its time this processor needs; measured once, and at least 1."""
    begin = time.process_time()
    total = 0
    for i in range(_LOOPS):
        total ^= i * i
    return max(1.0, (time.process_time() - begin) / _USUAL_S)
