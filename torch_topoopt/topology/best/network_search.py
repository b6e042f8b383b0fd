"""The options of mode best: the search for a network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import Network

BUDGET_S_PER_SERVER = 1 / 64  # so that 128 servers get two seconds


@dataclass(frozen=True)
class NetworkSearch:
    """Checked by `validate`.

    Best is the least `price(network)`, for example the predicted seconds of an iteration; where
    that is equal, or without a `price`, the least of `demand_cost`.

    `budget_s` is what the search over rings and links may cost, in seconds of a core that does
    `ring_unions.WORK_PER_S` operations in each: steps are counted, no clock is read, so the same
    arguments give the same network, byte for byte. More finds better; the default is
    `BUDGET_S_PER_SERVER` for each server. Planning routes comes on top.

    `on_better` is called with every network that is better than all before it, the paper's own
    first: for a caller that ends the search early.
    """

    seed: int = 0
    budget_s: float | None = None
    price: Callable[[Network], float] | None = None
    on_better: Callable[[Network], None] | None = None

    def validate(self) -> None:
        """Raises ValueError for a negative seed or a budget that is not a finite number above 0."""
        if self.seed < 0:
            raise ValueError(f"seed: {self.seed} is negative")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise ValueError(f"budget_s: {self.budget_s} is not a finite number of seconds above 0")

    def budget_of(self, servers: int) -> float:
        """Seconds that the search for a network of so many servers may cost."""
        return BUDGET_S_PER_SERVER * servers if self.budget_s is None else self.budget_s


DEFAULT_SEARCH = NetworkSearch()
