"""The receiving end of a flood: counts the bytes of a connection in a short time."""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

FLOOD_S = 1.0
ANSWER_S = 2.5  # covers a retransmission
RESULT = struct.Struct("!d")  # bytes per second
_COUNTED_FROM_S = 0.2  # slow start, and the burst of a queue, are over
# the best window of this length counts: busy processors or a loss interrupt a flood
_WINDOW_S = 0.4
_SAMPLE_S = 0.01


class Flood:
    """Counts the bytes of one connection until `deadline`."""

    def __init__(self, now: float) -> None:
        self.deadline = now + FLOOD_S
        self._total_bytes = 0
        self._samples = deque([(now + _COUNTED_FROM_S, 0)])  # time, total; of the last window
        self.bytes_per_s = 0.0
        self._answered = False

    def add(self, size_bytes: int, now: float) -> None:
        """Counts received bytes."""
        if self._answered:
            return
        self._total_bytes += size_bytes
        samples = self._samples
        if now < samples[0][0]:
            samples[0] = (samples[0][0], self._total_bytes)
            return
        if now < samples[-1][0] + _SAMPLE_S:
            return
        samples.append((now, self._total_bytes))
        while samples[1][0] <= now - _WINDOW_S:
            samples.popleft()
        begin, before = samples[0]
        if now - begin >= _WINDOW_S:
            self.bytes_per_s = max(self.bytes_per_s, (self._total_bytes - before) / (now - begin))

    def answer(self, connection: socket.socket) -> bool:
        """Tells the sender the rate, once; it closes the connection in ANSWER_S then.

        Until then, later bytes are read and ignored: closing here would drop the answer.
        """
        if self._answered:
            return False
        self._answered = True
        self.deadline += ANSWER_S
        with contextlib.suppress(OSError):
            connection.send(RESULT.pack(self.bytes_per_s))
        return True
