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

    The best network has the least `price(network)`, for example the predicted seconds of an
    iteration; ties, or no `price`: the least `demand_cost`.

    `budget_s` limits the search over rings and links, in seconds of a core with
    `ring_unions.WORK_PER_S` operations per second. Operations are counted, without a clock, so the
    search is deterministic. The default is `BUDGET_S_PER_SERVER` for each server. Planning routes
    is extra.

    `on_better` is called with every new best network, the paper's own first, for callers that end
    the search early.
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
