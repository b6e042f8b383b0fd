"""The time of a rank: processor time, and waiting for anything else, such as a disk.

Time in the queue for a processor is excluded, because it depends on other load of the machine.
"""

from __future__ import annotations

import time
from typing import NamedTuple


class Reading(NamedTuple):
    """Seconds since some time in the past: of processors, and of waiting for something else."""

    processor_s: float
    waiting_s: float

    def since(self, before: Reading) -> Reading:
        """The time between two readings."""
        return Reading(self.processor_s - before.processor_s, self.waiting_s - before.waiting_s)

    def plus(self, other: Reading) -> Reading:
        """The sum of both."""
        return Reading(self.processor_s + other.processor_s, self.waiting_s + other.waiting_s)


def read_clocks() -> Reading:
    """Of this process and of its calling thread.

    The time in the queue is that of Linux, Documentation/scheduler/sched-stats.rst.
    """
    with open("/proc/thread-self/schedstat", encoding="ascii") as file:
        queued_s = int(file.read().split()[1]) * 1e-9
    waiting_s = time.monotonic() - time.thread_time() - queued_s
    return Reading(time.process_time(), waiting_s)
