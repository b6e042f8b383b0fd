"""Rounds and compares the rates that floods measure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from typing import TypeVar

    Key = TypeVar("Key", bound=Hashable)

ALIKE = 1.5  # times: rates of one kind, as measurements repeat
# one connection may carry no more than that, however fast its link is
MEASURABLE_GBPS = 1.0


def alike(rates: Mapping[Key, float]) -> dict[Key, float]:
    """Makes rates equal that differ only by noise, so that rings share evenly."""
    found: dict[Key, float] = {}
    keys = sorted(rates, key=lambda key: -rates[key])
    while keys:
        kind = [key for key in keys if rates[key] * ALIKE >= rates[keys[0]]]
        found |= dict.fromkeys(kind, two_digits(median(rates[key] for key in kind)))
        keys = keys[len(kind) :]
    return found


def two_digits(value: float) -> float:
    """Rounds to two digits: further ones are noise."""
    return float(f"{value:.2g}")
