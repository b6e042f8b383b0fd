"""The sequence of a rank's collectives, which repeats with the steps of a training."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

_KEPT = 1024  # requests
_LONGEST = 32  # requests that are compared
_CONTEXT = 4  # requests before a wrong expectation
_FORGIVEN = 8  # a wrong expectation is repeated after so many times that it would have been right


class RequestSequence:
    """Expects the requests that followed the longest sequence like the last requests.

    An expectation that was wrong is not repeated after the same requests, until the request has
    followed them several times.
    """

    def __init__(self) -> None:
        self._requests: deque[Hashable] = deque(maxlen=_KEPT)
        self._wrong: dict[tuple[Hashable, ...], int] = {}  # context -> times until it is forgiven

    def add(self, request: Hashable) -> None:
        context = self._context(request)
        if context in self._wrong:
            self._wrong[context] -= 1
            if not self._wrong[context]:
                del self._wrong[context]
        self._requests.append(request)

    def expected(self, count: int = 1) -> tuple[Hashable, ...]:
        """The next requests, at most `count`; empty if they are not known."""
        recent = list(self._requests)[::-1]
        longest, found = 0, 0
        for place in range(1, len(recent)):
            alike = 0
            for before, now in zip(islice(recent, place, place + _LONGEST), recent, strict=False):
                if before != now:
                    break
                alike += 1
            if alike > longest:
                longest, found = alike, place
            if alike == _LONGEST:
                break
        following = tuple(recent[max(0, found - count) : found][::-1])
        return () if following and self._context(following[0]) in self._wrong else following

    def doubt(self, request: Hashable) -> None:
        """Call before add(), if the next request is not this one, though it was expected."""
        self._wrong[self._context(request)] = _FORGIVEN

    def _context(self, request: Hashable) -> tuple[Hashable, ...]:
        return (*list(self._requests)[-_CONTEXT:], request)
