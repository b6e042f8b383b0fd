"""The tested combinations of operation, dtype, reduction, size, layout and mode.

A covering set holds every valid pair of two properties at least once; the full product, everything.
"""

from __future__ import annotations

import functools
import itertools
import random
from typing import TYPE_CHECKING, Any

from support.backend.contract_operations import FLAT_ONLY, OPERATIONS, REDUCING, Case
from support.backend.contract_values import LAYOUTS, MOVABLE, REDUCIBLE, reduce_ops_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# From nothing to several chunks of several ring segments; primes, and sizes with factors.
SIZES = (0, 1, 2, 7, 60, 1009, 6000, 65_537, 262_144, 700_001)

_CANDIDATES = 8000


def layouts_of(operation: str, size: int) -> tuple[str, ...]:
    if operation in FLAT_ONLY:
        return ("flat",)
    return tuple(layout for layout in LAYOUTS if layout != "scalar" or size == 1)


def kinds_of(operation: str) -> list[tuple[Any, str]]:
    if operation in REDUCING:
        return [(dtype, op) for dtype in REDUCIBLE for op in reduce_ops_of(dtype)]
    return [(dtype, "") for dtype in MOVABLE]


def full_product() -> Iterator[Case]:
    number = itertools.count()
    for operation, size in itertools.product(OPERATIONS, SIZES):
        for layout, (dtype, op) in itertools.product(
            layouts_of(operation, size), kinds_of(operation)
        ):
            for asynchronous in (False, True):
                yield Case(operation, dtype, op, size, layout, asynchronous, next(number))


def pairs_of(case: Case) -> set[tuple[Any, ...]]:
    properties = ("operation", "dtype", "reduction", "size", "layout", "asynchronous")
    values = [(name, str(getattr(case, name))) for name in properties]
    return set(itertools.combinations(values, 2))


@functools.lru_cache
def all_pairs() -> frozenset[tuple[Any, ...]]:
    return frozenset(pair for case in full_product() for pair in pairs_of(case))


def _random_case(rng: random.Random, number: int) -> Case:
    operation = rng.choice(tuple(OPERATIONS))
    size = rng.choice(SIZES)
    layout = rng.choice(layouts_of(operation, size))
    dtype, op = rng.choice(kinds_of(operation))
    return Case(operation, dtype, op, size, layout, rng.random() < 0.5, number)


def covering_set(seed: int) -> list[Case]:
    """A small set with every pair of `all_pairs`; another one for every seed."""
    rng = random.Random(seed)
    candidates = [(c, pairs_of(c)) for c in (_random_case(rng, n) for n in range(_CANDIDATES))]
    covered: set[tuple[Any, ...]] = set()
    chosen = []
    for wanted in (12, 9, 7, 5, 4, 3, 2, 1):
        for case, pairs in candidates:
            if len(pairs - covered) >= wanted:
                chosen.append(case)
                covered |= pairs
    for case in full_product():  # combinations that the random choice left out
        if not all_pairs() - covered:
            break
        if pairs_of(case) - covered:
            chosen.append(case)
            covered |= pairs_of(case)
    rng.shuffle(chosen)
    return chosen
