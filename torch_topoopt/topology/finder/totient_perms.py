"""TotientPerms: the strides that join a group into one ring (paper section 4.3, Algorithm 2).

Stride p sends member i to member (i + p) mod k of a group of k servers. By Theorem 2 (appendix
E.1) this is one ring through all k members exactly when gcd(p, k) = 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def totient_perms(size: int, *, duplex: bool) -> tuple[int, ...]:
    """The candidate strides of a group of `size` servers, ascending.

    Simplex: every p < size that is coprime with size. Duplex: only p <= size / 2, because strides p
    and size - p are the two directions of the same cables. A group of one server has none.
    Source: paper Algorithm 2, over the group's own members, whichever servers they are. The paper
    also allows only prime p, to save time on large clusters; all coprime p are kept here.

    Raises ValueError if `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"size: {size} is not at least 1")
    largest = size // 2 if duplex else size - 1
    return tuple(p for p in range(1, largest + 1) if math.gcd(p, size) == 1)


def ring_order(members: Sequence[int], stride: int) -> tuple[int, ...]:
    """The members in the order in which the ring of `stride` visits them, from the first on.

    Raises ValueError if `stride` does not generate the group (it would visit only a part of it).
    """
    size = len(members)
    if math.gcd(stride, size) != 1:
        raise ValueError(
            f"stride: {stride} shares the factor {math.gcd(stride, size)} with the group size "
            f"{size}; a ring over the whole group needs a coprime stride"
        )
    return tuple(members[step * stride % size] for step in range(size))
