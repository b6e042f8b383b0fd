"""The sequence of a job's collectives, which repeats with the steps of a training."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

_KEPT = 1024  # requests
_LONGEST = 32  # requests that are compared
_CONTEXT = 4  # requests before a wrong expectation


class RequestSequence:
    """Expects the request that followed the longest sequence like the last requests.

    An expectation that was wrong once is not repeated after the same requests.
    """

    def __init__(self) -> None:
        self._requests: deque[Hashable] = deque(maxlen=_KEPT)
        self._wrong: set[tuple[Hashable, ...]] = set()

    def add(self, request: Hashable) -> None:
        self._requests.append(request)

    def expected(self) -> Hashable | None:
        """The next request; None if it is not known."""
        recent = list(self._requests)[::-1]
        longest, found = 0, None
        for place in range(1, len(recent)):
            alike = 0
            for before, now in zip(islice(recent, place, place + _LONGEST), recent, strict=False):
                if before != now:
                    break
                alike += 1
            if alike > longest:
                longest, found = alike, recent[place - 1]
            if alike == _LONGEST:
                break
        return None if found is None or self._context(found) in self._wrong else found

    def doubt(self, request: Hashable) -> None:
        """Call before add(), if the next request is not this one, though it was expected."""
        self._wrong.add(self._context(request))

    def _context(self, request: Hashable) -> tuple[Hashable, ...]:
        return (*list(self._requests)[-_CONTEXT:], request)
