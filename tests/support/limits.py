"""Limits of waits in tests: those of an idle machine, stretched to the speed of this one.

Only limits scale, which end a test that blocks. No test asserts on time. A limit costs nothing
where all is well, so it is spared: the load is a mean of the last minute, and its next second may
be worse.
"""

from __future__ import annotations

import os
import time
from functools import cache

_LOOPS = 200_000
_USUAL_S = 0.02  # processor time of these loops on the machine that limits are written for
_SPARE = 3.0
_MOST = 12.0  # a blocked test must still end


def limit_s(idle_s: float) -> float:
    """Seconds for something that takes at most `idle_s` where nothing else runs, and to spare."""
    return idle_s * min(_MOST, _SPARE * slowness())


def slowness() -> float:
    """The slowdown here and now against an idle machine; at least 1."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(1.0, waiting) * _processor()


@cache
def _processor() -> float:
    """The slowdown of this processor in CPU time; measured once, and at least 1."""
    begin = time.process_time()
    total = 0
    for i in range(_LOOPS):
        total ^= i * i
    return max(1.0, (time.process_time() - begin) / _USUAL_S)
