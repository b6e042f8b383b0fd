"""Strategies with their times, for chunks of one size or of many; the fastest of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.sweep import most_topologies, strategies
from torch_topoopt.reconfiguration.all_to_all.uneven import assigned, relabelled, uneven_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.all_to_all.sweep import Strategy


@dataclass(frozen=True, eq=False)
class Option:
    """A strategy of the servers themselves, and what it takes."""

    strategy: Strategy
    seconds: float


# parameters: one for each thing that a schedule depends on
def compared(
    servers: int,
    degree: int,
    costs: CircuitCosts,
    sizes: float | NDArray[np.float64],
    *,
    mode: str = "best",
    count: int | str | None = None,
    seed: int = 0,
    on_option: Callable[[Option, float], None] | None = None,
) -> list[Option]:
    """Strategies in order of their number of topologies: `count`, "all", or as many as can pay.

    `sizes` are the bytes of every chunk, or a matrix of them (uneven.check_matrix). Raises
    ValueError as `strategies` does.
    """
    first = count if isinstance(count, int) else 1
    most = most_topologies(servers, degree)
    found: Iterator[Strategy] = strategies(servers, degree, mode=mode, first=first, seed=seed)
    if isinstance(count, int):
        found = itertools.islice(found, 1)
    options: list[Option] = []
    for strategy in found:
        options.append(_option(strategy, costs, sizes, seed))
        if on_option is not None:
            on_option(options[-1], (strategy.reconfigurations - first + 1) / (most - first + 1))
        if count is None:
            more_s = (strategy.reconfigurations + 1) * costs.reconfiguration_s
            if more_s + _least_seconds(servers, degree, costs, sizes) >= fastest(options).seconds:
                break
    if not options:
        raise ValueError(
            f"reconfigurations: mode {mode} has no further topologies before {first}: every server "
            "sends directly to every other"
        )
    return options


def fastest(options: list[Option]) -> Option:
    """The one that takes least time, of several the one with the fewest reconfigurations."""
    return min(options, key=lambda option: (option.seconds, option.strategy.reconfigurations))


def _option(
    strategy: Strategy, costs: CircuitCosts, sizes: float | NDArray[np.float64], seed: int
) -> Option:
    schedule = strategy.schedule
    if isinstance(sizes, np.ndarray):
        servers, largest = assigned(schedule, sizes, seed=seed)
        time_s = uneven_seconds(schedule, largest, costs)
        strategy = replace(strategy, schedule=relabelled(schedule, servers))
    else:
        time_s = costs.seconds(schedule.slots, schedule.reconfigurations, sizes)
    return Option(strategy, time_s)


def _least_seconds(
    servers: int, degree: int, costs: CircuitCosts, sizes: float | NDArray[np.float64]
) -> float:
    """No schedule takes less, delays of the switch apart: every chunk has a hop."""
    if not isinstance(sizes, np.ndarray):
        return most_topologies(servers, degree) * costs.slot_s(sizes)
    sent = max(float(sizes.sum(axis=0).max()), float(sizes.sum(axis=1).max())) / degree
    return sent * 8e-9 / costs.link_gbps
