"""Time as a parameter: drivers poll devices that settle in milliseconds or in minutes."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time that a driver reads and waits for; seconds."""

    def now(self) -> float:
        """Monotonic."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The time of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class HandClock:
    """Time that passes only in `sleep` or when a test sets it: for tests and dry runs."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now += seconds
