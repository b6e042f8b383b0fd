"""Strategies with their times, for chunks of equal or unequal size; the fastest of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.reconfiguration.all_to_all.sweep import most_topologies, strategies
from torch_topoopt.reconfiguration.all_to_all.uneven import (
    chunks_of,
    direct_strategies,
    uneven_strategy,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.all_to_all.sweep import Strategy


@dataclass(frozen=True, eq=False)
class Option:
    """A strategy of the servers themselves, and its time, also in the packet simulator."""

    JSON_FIELDS: ClassVar = (
        "strategy.reconfigurations", "strategy.slots", "seconds", "strategy.lower_bound_slots",
        "strategy.carried_bound_slots", "strategy.base", "strategy.schedule.rounds",
        "packet_seconds",
    )  # fmt: skip
    OMIT_IF_NONE: ClassVar = ("packet_seconds",)

    strategy: Strategy
    seconds: float
    packet_seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Sizes:
    """The demand of servers: equal bytes for every pair, or chunks of `chunk_bytes`,
    `counts[source, target]` of them (uneven.chunks_of)."""

    chunk_bytes: float
    counts: NDArray[np.int32] | None = None

    @staticmethod
    def of_matrix(matrix: NDArray[np.float64], chunk_bytes: float | None = None) -> Sizes:
        """Of a checked matrix (uneven.check_matrix), by default in eighths of the mean pair.

        Raises ValueError for too many chunks.
        """
        if chunk_bytes is None:
            chunk_bytes = float(matrix[matrix > 0].mean()) / 8
        return Sizes(chunk_bytes, chunks_of(matrix, chunk_bytes))

    def least_slots(self, servers: int, degree: int) -> int:
        """A lower bound: every chunk leaves its source, and enters its target."""
        if self.counts is None:
            return most_topologies(servers, degree)
        sent = max(int(self.counts.sum(axis=0).max()), int(self.counts.sum(axis=1).max()))
        return -(-sent // degree)


# parameters: the inputs of a schedule, one each
def compared(
    servers: int,
    degree: int,
    costs: CircuitCosts,
    sizes: Sizes,
    *,
    mode: str = "best",
    count: int | str | None = None,
    seed: int = 0,
    on_option: Callable[[Option, float], None] | None = None,
) -> list[Option]:
    """Strategies in order of their number of topologies: `count`, "all", or those that may pay.

    Of unequal sizes, numbers above 8 are tried in steps of an eighth. Raises ValueError as
    `strategies` does.
    """
    first = count if isinstance(count, int) else 1
    most = most_topologies(servers, degree)
    found: Iterator[Strategy] = strategies(servers, degree, mode=mode, first=first, seed=seed)
    if isinstance(count, int):
        found = itertools.islice(found, 1)
    options: list[Option] = []

    def add(strategy: Strategy, share: float) -> None:
        seconds = costs.seconds(strategy.slots, strategy.reconfigurations, sizes.chunk_bytes)
        options.append(Option(strategy, seconds))
        if on_option is not None:
            on_option(options[-1], share)

    least = sizes.least_slots(servers, degree)
    following = first
    for strategy in found:
        d = strategy.reconfigurations
        if sizes.counts is None:
            add(strategy, (d - first + 1) / (most - first + 1))
        elif d >= following:
            following = d + max(1, d // 8)
            if d == 1 and not isinstance(count, int):
                for direct in direct_strategies(sizes.counts, degree):
                    add(direct, 0.0)
            add(uneven_strategy(strategy, sizes.counts, seed=seed), d / most)
        if count is None and options:
            more_s = costs.seconds(least, d + 1, sizes.chunk_bytes)
            if more_s >= fastest(options).seconds:
                break
    if not options:
        raise ValueError(
            f"reconfigurations: mode {mode} has no further topologies before {first}: every server "
            "sends directly to every other"
        )
    return sorted(options, key=lambda option: option.strategy.reconfigurations)


def fastest(options: list[Option]) -> Option:
    """The fastest; ties go to the fewest reconfigurations."""
    return min(options, key=lambda option: (option.seconds, option.strategy.reconfigurations))
