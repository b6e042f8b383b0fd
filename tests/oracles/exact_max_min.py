"""Max-min fair rates in exact fractions, by the definition."""

from __future__ import annotations

from fractions import Fraction

Path = list[tuple[int, float]]


def exact_rates(capacity: list[float], paths: list[Path], counts: list[int]) -> list[Fraction]:
    """Progressive filling by definition: raise all rates until a link is full, stop its flows."""
    rates = [Fraction(0)] * len(paths)
    rising = {i for i, count in enumerate(counts) if count}
    left = [Fraction(c) for c in capacity]
    while rising:
        weight = [Fraction(0)] * len(capacity)
        for i in rising:
            for link, load in paths[i]:
                weight[link] += counts[i] * Fraction(load)
        room = {link: left[link] / w for link, w in enumerate(weight) if w}
        step = min(room.values())
        full = {link for link, r in room.items() if r == step}
        for i in rising:
            rates[i] += step
        for link, w in enumerate(weight):
            left[link] -= step * w
        rising = {i for i in rising if not full & {link for link, _ in paths[i]}}
    return rates
