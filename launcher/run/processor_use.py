"""The processor use of other programs on this machine while a job trains there.

All ranks of emulated servers share its processors, so predictions hold on an idle machine only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_NOTICED = 0.05  # of all processors
_IDLE = (3, 4)  # idle and iowait, among the columns of /proc/stat; columns from 8 on are repeats
_COLUMNS = 8


class ProcessorUse:
    """Processors kept busy by others than this process and its children, from now on."""

    def __init__(self) -> None:
        self._began = _Readings()

    def of_others(self) -> float:
        """Their average number, between 0 and all. Children count when they have ended."""
        now, began = _Readings(), self._began
        passed_s = max(now.time_s - began.time_s, 1e-3)
        others_s = (now.busy_s - began.busy_s) - (now.own_s - began.own_s)
        return max(0.0, others_s / passed_s)


def described(others: float | None) -> str:
    """One line; empty if others computed next to nothing, or without a measurement."""
    processors = os.cpu_count() or 1
    if others is None or others < _NOTICED * processors:
        return ""
    return (
        f"other programs used {others:.1f} of {processors} CPUs during the run; on an idle "
        "machine iterations are shorter"
    )


class _Readings:
    """Seconds: of the clock, of all busy processors, and of this process's part of these.

    Source: proc(5), /proc/stat.
    """

    def __init__(self) -> None:
        self.time_s = time.monotonic()
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        columns = list(enumerate(int(field) for field in fields[:_COLUMNS]))
        ticks = sum(count for column, count in columns if column not in _IDLE)
        self.busy_s = ticks / os.sysconf("SC_CLK_TCK")
        own = os.times()
        self.own_s = own.user + own.system + own.children_user + own.children_system
