"""Sets of strides with few hops between all servers.

On circulant topologies strides commute: a chunk for the server v further on may use strides a and
b, on any topologies, and wait at a relay for the later one. So d topologies of k strides each are
equivalent to one circulant graph of d k strides; the hops of all chunks are the sum of its
distances. This module searches sets with a small sum: greedily, and by exchanging single strides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_MOST_CANDIDATES = 512  # strides; for more servers a random sample
_EXCHANGED_WORK = 5_000_000  # strides x servers x candidates; up to here sets are improved
_PASSES = 20  # of exchanges, at most


def distances(servers: int, strides: Sequence[int]) -> NDArray[np.int32]:
    """Fewest hops to the server v further on, over any of the strides; 4 n if unreached."""
    hops = np.full(servers, 4 * servers, dtype=np.int32)
    hops[0] = 0
    for stride in strides:
        hops = _with_each(hops, np.array([stride]))[0]
    return hops


class StrideSets:
    """Sets for any count of strides; the same for the same seed."""

    def __init__(self, servers: int, *, seed: int = 0) -> None:
        self._n = servers
        self._seed = seed
        every = np.arange(1, servers)
        if len(every) > _MOST_CANDIDATES:
            some = np.random.default_rng(seed).choice(every[1:], _MOST_CANDIDATES, replace=False)
            every = np.sort(np.append(some, 1))
        self._candidates = every
        self._growing = self._grow()
        self._grown: list[int] = []

    def greedy(self, count: int) -> tuple[int, ...]:
        """1 first, then each stride that saves most hops after those before it."""
        while len(self._grown) < count:
            self._grown.append(next(self._growing))
        return tuple(self._grown[:count])

    def several(self, count: int, *, restarts: int) -> list[tuple[int, ...]]:
        """Good sets, the one of fewest hops first: after exchanges, from the greedy set and from
        `restarts` random ones; the greedy one alone where that would take long."""
        greedy = self.greedy(count)
        if count < 2 or count * self._n * len(self._candidates) > _EXCHANGED_WORK:
            return [greedy]
        random = np.random.default_rng((self._seed, count))
        starts = [greedy]
        for _ in range(restarts):
            drawn = random.choice(self._candidates, min(count, self._n - 1), replace=False)
            starts.append((1, *drawn[drawn != 1].tolist())[:count])
        found = {self._exchanged(start) for start in starts if len(start) == count}
        return [strides for _, strides in sorted(found)]

    def extended(self, strides: Sequence[int], count: int) -> tuple[int, ...]:
        """`strides`, then those that save most hops after them."""
        growing = self._grow(strides)
        return tuple(next(growing) for _ in range(count))

    def _grow(self, first: Sequence[int] = (1,)) -> Iterator[int]:
        yield from first
        hops = distances(self._n, first)
        used = set(first)
        while True:
            after = _with_each(hops, self._candidates)
            total = after.sum(axis=1, dtype=np.int64)
            total[np.isin(self._candidates, list(used))] += 1  # avoids using a stride twice
            best = int(total.argmin())
            hops = after[best]
            used.add(int(self._candidates[best]))
            yield int(self._candidates[best])

    def _exchanged(self, strides: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """(hops of all chunks, strides) of a local optimum under single exchanges."""
        strides = list(strides)
        least = int(distances(self._n, strides).sum(dtype=np.int64))
        for _ in range(_PASSES):
            before = least
            for i in range(len(strides)):
                rest = distances(self._n, strides[:i] + strides[i + 1 :])
                total = _with_each(rest, self._candidates).sum(axis=1, dtype=np.int64)
                best = int(total.argmin())
                if total[best] < least:
                    least, strides[i] = int(total[best]), int(self._candidates[best])
            if least == before:
                break
        return least, tuple(sorted(strides))


def _with_each(hops: NDArray[np.int32], strides: NDArray[np.int64]) -> NDArray[np.int32]:
    """Row i: distances after adding stride i to the strides of `hops`.

    Any number of uses of a stride is a sum of powers of two, each taken or not.
    """
    n = len(hops)
    at = np.arange(n)
    after = np.repeat(hops[None], len(strides), axis=0)
    uses = 1
    while uses < n and uses < after.max():
        come = (at - uses * strides[:, None]) % n
        after = np.minimum(after, np.take_along_axis(after, come, axis=1) + uses)
        uses *= 2
    return after
