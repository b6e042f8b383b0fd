"""SelectPermutations: strides close to a geometric sequence (paper section 4.3, Algorithm 3)."""

from __future__ import annotations

from bisect import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def select_permutations(
    size: int, count: int, candidates: Sequence[int], chosen: Sequence[int] = ()
) -> tuple[int, ...]:
    """Up to `count` strides from `candidates`, near 1, x, x^2, ... with x = size^(1/total).

    Starts from the smallest candidate; each next stride is the unused candidate with the least
    |r - x q| (ties to the smaller r), where q is the stride selected before it, already projected
    (lines 7 and 10 of Algorithm 3). `chosen` are strides that already have links: the sequence
    goes on from the last of them, and `total` counts them too. Fewer than `count` strides come
    back when the candidates run out.

    `size` is the number of servers of the group: the n of Algorithm 3 is written for a group that
    is the whole cluster, and appendix E.2 takes coprimes "with the size of a subset".

    Raises ValueError if `count` is negative or `size` below 1.
    """
    if count < 0:
        raise ValueError(f"count: {count} is negative")
    if size < 1:
        raise ValueError(f"size: {size} is not at least 1")
    unused = sorted(set(candidates) - set(chosen))
    selected: list[int] = []
    total = len(chosen) + min(count, len(unused))
    previous = chosen[-1] if chosen else None
    while unused and len(selected) < count:
        if previous is None:
            nearest = 0
        else:
            target = size ** (1 / total) * previous
            above = bisect(unused, target)
            around = range(max(0, above - 1), min(above + 1, len(unused)))
            nearest = min(around, key=lambda i: abs(unused[i] - target))
        stride = unused.pop(nearest)
        selected.append(stride)
        previous = stride
    return tuple(selected)
